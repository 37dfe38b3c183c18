"""The life of boxes, done: rest and resume, verbs of operators, copies of trees, use. Over the ports alone."""
