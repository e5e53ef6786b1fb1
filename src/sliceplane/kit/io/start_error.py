"""The one exception of a start that cannot succeed: its text is the sentence that the user reads.

Raised while a process is put together (data folder, certificates, socket, database), always
``from`` the error of the environment. Commands print it on one line of stderr and exit with code 1;
whatever was on disk before is untouched.
"""

from __future__ import annotations


class StartError(Exception):
    """Why the process cannot start, in one sentence that names the file, address or flag at
    fault.
    """
