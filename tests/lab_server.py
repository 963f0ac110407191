"One JupyterLab server for all tests of a process, and pages of one Chromium in which it is opened"
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from browser import knows_the_tour

@contextmanager
def lab(root):
    "Run a JupyterLab server on the folder `root` with separate settings inside the block, and yield its address"
    with socket.socket() as s: s.bind(('127.0.0.1', 0)); port = s.getsockname()[1]
    home = root.parent/'jupyter'
    settings = home/'settings'/'@jupyterlab'/'apputils-extension'
    settings.mkdir(parents=True)
    (settings/'notification.jupyterlab-settings').write_text(json.dumps(dict(fetchNews='false', checkForUpdates=False)))
    names = dict(JUPYTER_CONFIG_DIR='config', JUPYTERLAB_SETTINGS_DIR='settings',
                 JUPYTERLAB_WORKSPACES_DIR='workspaces', JUPYTER_RUNTIME_DIR='runtime', IPYTHONDIR='ipython')
    with open(home/'log.txt', 'w') as log:
        server = subprocess.Popen([sys.executable, '-m', 'jupyterlab', '--no-browser', f'--port={port}',
            '--ip=127.0.0.1', '--allow-root', f'--ServerApp.root_dir={root}',
            '--IdentityProvider.token=', '--LabApp.news_url=',
            '--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate', # so that tests can end its kernels:
            '--ServerApp.disable_check_xsrf=True'],
            env={**os.environ, **{k: str(home/v) for k, v in names.items()}}, stdout=log, stderr=log)
    try:
        until = time.monotonic() + 60
        while True:
            try: urllib.request.urlopen(f'http://127.0.0.1:{port}/api/status', timeout=2); break
            except OSError:
                if server.poll() is not None or time.monotonic() > until:
                    raise RuntimeError((home/'log.txt').read_text())
                time.sleep(.2)
        yield f'http://127.0.0.1:{port}'
    finally: server.terminate(); server.wait(20)

@pytest.fixture(scope='session')
def jupyter(browser, tmp_path_factory):
    """Return the server's `url` and `root`; `new_page(width, height)` opens a page, `folder(name)` creates a folder
    below the root, `end_kernels(name)` shuts down the kernels of its notebooks"""
    root = tmp_path_factory.mktemp('jupyter')/'work'
    root.mkdir()
    def new_page(width=1300, height=1000): # in a separate window: a page behind another one would not draw
        page = browser.new_page(viewport=dict(width=width, height=height))
        page.add_init_script(knows_the_tour)
        return page
    def folder(name):
        (root/name).mkdir()
        return root/name
    def end_kernels(name):
        with urllib.request.urlopen(f'{url}/api/sessions') as answer: sessions = json.load(answer)
        for session in sessions:
            if not session['path'].startswith(name): continue
            urllib.request.urlopen(urllib.request.Request(f'{url}/api/sessions/{session["id"]}', method='DELETE'))
    with lab(root) as url:
        yield SimpleNamespace(url=url, root=root, new_page=new_page, folder=folder, end_kernels=end_kernels)
