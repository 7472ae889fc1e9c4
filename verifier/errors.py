"""The one exception for bad input: its text says what is wrong, where, and what to do. The command line prints it as one
line and exits with status 2."""


class InputError(ValueError):
    """Something that the user gave cannot be used. The message is one line: what, where, what to do."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))
