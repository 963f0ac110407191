"Find accessibility faults of a page with axe-core."
from axe_playwright_python.sync_playwright import Axe

def faults(page):
    "Return a line for each violation: its rule, its severity and the elements"
    found = Axe().run(page).response['violations']
    return [f'{one["id"]} ({one["impact"]}): {one["help"]}: '
            + '; '.join(f'{node["target"]} {node["html"][:160]}' for node in one['nodes'][:4]) for one in found]
