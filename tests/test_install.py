"Installation with uv uses the configuration of pip"
import subprocess
import sys

import install


def test_the_environment_overrides_files_and_install_overrides_all_commands():
    listed = "\n".join(["install.find-links='/b'", ":env:.index-url='https://c/simple'", "global.find-links='/a'",
                        "global.index-url='https://a/simple'", "list.format='columns'"])
    assert install.settings(listed) == {'find-links': '/b', 'index-url': 'https://c/simple'}


def test_pip_s_indexes_and_links_become_options_of_uv():
    listed = r"global.extra-index-url='file:///x/simple\nhttps://y/simple'" "\nglobal.index-url='https://z/simple'"
    assert install.uv_options(install.settings(listed)) == [
        '--default-index', 'https://z/simple', '--index', 'file:///x/simple', '--index', 'https://y/simple',
        '--index-strategy', 'unsafe-best-match']


def test_without_configuration_only_the_strategy_of_pip_is_passed_on():
    assert install.uv_options(install.settings('')) == ['--index-strategy', 'unsafe-best-match']


def test_pip_installs_where_uv_cannot(monkeypatch, capfd):
    commands = []

    def run(command, **kwargs): # uv can be fetched, but fails
        commands.append(command)
        return subprocess.CompletedProcess(command, int('uv' in command[:3]), stdout='')
    monkeypatch.setattr(subprocess, 'run', run)
    assert install.install('.[dev]') == 0
    assert commands[-1][:4] == [sys.executable, '-m', 'pip', 'install'] and commands[-1][-1] == '.[dev]'
    assert [command[2] for command in commands] == ['pip', 'pip', 'uv', 'pip']
    assert 'pip does it' in capfd.readouterr().err
