"""Which variables of a command may hold a placeholder. Pure.

One that says what a command runs, whom it trusts or by which way it goes out is none: a placeholder there would take
the place of what it needs, or be run. Names are compared without their case: curl and npm read some in either. Must
never refuse a variable that a recipe names.
"""

from __future__ import annotations

from ringfence.host.kernel.outward.environment import BLOCK

MAX_LENGTH = 64
_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")
# Of a session and its shell, of the C library, of programs that run what a variable names.
_SYSTEM = """ PATH HOME USER LOGNAME SHELL LANG TERM TMPDIR PWD OLDPWD IFS ENV PS1 PS4 CDPATH FPATH ZDOTDIR SHELLOPTS
BASHOPTS GLOBIGNORE PROMPT_COMMAND TZ TZDIR GCONV_PATH LOCPATH NLSPATH HOSTALIASES RES_OPTIONS LOCALDOMAIN
GLIBC_TUNABLES EDITOR VISUAL PAGER MANPAGER BROWSER LESSOPEN LESSCLOSE LESSKEY SSH_ASKPASS SUDO_ASKPASS GIT_SSH
GIT_SSH_COMMAND GIT_ASKPASS GIT_EDITOR GIT_SEQUENCE_EDITOR GIT_PAGER GIT_EXEC_PATH GIT_EXTERNAL_DIFF GIT_PROXY_COMMAND
GIT_TEMPLATE_DIR GIT_DIR GIT_WORK_TREE GIT_SSL_NO_VERIFY
CURL_HOME WGETRC SYSTEM_WGETRC NETRC UV_INDEX UV_INDEX_URL UV_DEFAULT_INDEX
"""
_INTERPRETERS = """
NODE_OPTIONS NODE_PATH NODE_REPL_EXTERNAL_MODULE NODE_TLS_REJECT_UNAUTHORIZED PERLLIB RUBYOPT RUBYLIB RUBYSHELL GEM_HOME
GEM_PATH BUNDLE_GEMFILE BUNDLE_PATH JAVA_HOME JAVA_OPTS JAVA_TOOL_OPTIONS _JAVA_OPTIONS JDK_JAVA_OPTIONS CLASSPATH
MAVEN_OPTS GRADLE_OPTS DOTNET_STARTUP_HOOKS PHPRC PHP_INI_SCAN_DIR LUA_INIT LUA_PATH LUA_CPATH R_PROFILE R_ENVIRON
GOFLAGS GOENV GOROOT GOPATH GOPROXY RUSTFLAGS RUSTC RUSTC_WRAPPER VIRTUAL_ENV
"""
# Where an SDK looks for a model: the gateway's (host/egress/given.py), or the key would be sent to whatever is named
# there.
_GATEWAY = "OPENAI_BASE_URL OPENAI_API_BASE ANTHROPIC_BASE_URL"
_NAMES = frozenset(name.upper() for name in (*BLOCK, *f"{_SYSTEM} {_INTERPRETERS} {_GATEWAY}".split()))
_PREFIXES = (
    *("LD_", "DYLD_", "LC_", "BASH_", "MALLOC_", "RINGFENCE_", "XDG_", "PIP_", "AWS_ENDPOINT_URL"),
    *("SSL_", "OPENSSL_", "PYTHON", "PERL5", "CORECLR_", "NPM_CONFIG_", "GIT_CONFIG", "LUA_INIT_"),
)


def allowed(name: str) -> bool:
    if not name or len(name) > MAX_LENGTH or name[0].isdigit() or not _LETTERS.issuperset(name):
        return False
    return name.upper() not in _NAMES and not name.upper().startswith(_PREFIXES)
