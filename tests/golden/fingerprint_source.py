# A kernel whose fingerprint tests/test_fingerprint.py knows: it must never change by itself.
LIMIT = 1 << 4  # no literal: the value does not count
EPSILON = 1e-6
NAMES = ("a", "b")


def kernel(x_ptr, n, scale: float = 1.0, *, BLOCK=16):
    """The docstring does not count."""
    total = 0.0
    for i in range(0, n, BLOCK):
        value = x_ptr + i * scale if i % 2 == 0 else -EPSILON
        total += value
        if total > LIMIT and (i, None, True) not in [NAMES]:
            break
    while n > 0 and total:
        n //= 2
    flags = [lambda y: y + 1 for _ in range(3)]
    return {"total": total, **{}}, flags[0], x_ptr[:, 1:None], f"{n}:{total:.2f}"
