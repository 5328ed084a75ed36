"""What `benchmarks.peers` and `benchmarks.training` share: they let vectorised envs of several libraries take turns.

candidates  a library's vectorised env in one setting, and the line-up of a cell
grid         cells and the axes that they lie on
processes    a process per library, in which it takes its turns; serve: its program
run          cells measured into a file, as far as a budget of time allows; the command line
figures      what readings say: medians over the rounds, and ratios round by round
page         what tables of several cells need
"""
