"""ROOT, tiny, standard library only. Makes, starts and ends boxes; derives every path itself."""
