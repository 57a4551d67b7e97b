"""The figures of limits.txt: the most that a check may find. They may only shrink."""


def read(path, check):
    """{what: most} of `check`, which is the first word of its lines; the last is the figure."""
    allowed = {}
    for line in path.read_text().splitlines():
        words = line.split("#", 1)[0].split()
        if words and words[0] == check:
            allowed[" ".join(words[1:-1])] = int(words[-1])
    return allowed


def judge(have, allowed, slack=0.0):
    """What is over its limit, or under it by more than `slack` of it: the limit follows what shrinks."""
    errors = [f"{what} has no limit" for what in have if what not in allowed]
    for what, most in allowed.items():
        if what not in have:
            errors.append(f"{what} has a limit, and nothing counts it")
        elif have[what] > most:
            errors.append(f"{what} {have[what]}; {most} at most")
        elif have[what] < most * (1 - slack):
            errors.append(f"{what} {have[what]}, and limits.txt says {most}: lower it")
    return errors
