"What axe-core finds wrong in a page, for tests of everything that people open."
from axe_playwright_python.sync_playwright import Axe

def faults(page):
    "A line for each violation: its rule, how severe it is, and the elements"
    found = Axe().run(page).response['violations']
    return [f'{one["id"]} ({one["impact"]}): {one["help"]}: '
            + '; '.join(f'{node["target"]} {node["html"][:160]}' for node in one['nodes'][:4]) for one in found]
