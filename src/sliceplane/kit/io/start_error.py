"""The only exception of a start that cannot succeed: its text is a sentence for the user.

It is raised while a process is assembled (data folder, certificates, socket, database), always
``from`` the error of the environment. Commands print it on one line of stderr and exit with code 1;
existing data on disk is untouched.
"""

from __future__ import annotations


class StartError(Exception):
    """The reason why the process cannot start, in one sentence that names the file, address or flag
    at fault.
    """
