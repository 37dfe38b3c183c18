"""What leaves a box: names, addresses, rules, credentials and their stand-ins. Pure, like all of the kernel."""
