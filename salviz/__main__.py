"`python -m salviz` is `salviz`."
import sys

from salviz.cli import main

sys.exit(main())
