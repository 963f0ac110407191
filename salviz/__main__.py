"Run the `salviz` command as `python -m salviz`."
import sys

from salviz.cli import main

if __name__ == '__main__': sys.exit(main())
