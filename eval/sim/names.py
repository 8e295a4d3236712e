"""Names of a run's files."""


def file_stem(policy: str, schedule: str, admission: str, concurrency: int, seed: int) -> str:
    """Name of a run's files, without the ending."""
    safe = (
        "".join(letter if letter.isalnum() or letter in "+-." else "_" for letter in name)
        for name in (policy, schedule, *((admission,) if admission != "off" else ()))
    )
    return f"{'.'.join(safe)}.c{concurrency}.s{seed}"
