# Sourced by the scripts beside this folder: one virtual environment in the repository root, made once and then reused.
# Expects ROOT to be the repository root; sets VENV.

VENV="$ROOT/.venv"

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# The Python that makes the environment: 3.11 or later, with a venv module that can install pip.
require_python() {
    local python="${PYTHON:-python3}"
    command -v "$python" >/dev/null || fail "$python not found; install Python 3.11 or later, or name one: PYTHON=/path/to/python3 $0"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "$python is $("$python" -V 2>&1), uttershard needs 3.11 or later; name another: PYTHON=/path/to/python3 $0"
    # Debian and Ubuntu ship python3 without it.
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "$python has no venv module; install it (Debian, Ubuntu: apt-get install python3-venv)"
}

# install_package [EXTRA]: make .venv hold this checkout, with one of pyproject's extras if named.
# A stamp for each extra remembers what was installed, so that a second run costs nothing. The root is part of it
# because an editable install points into it: a checkout that was moved is installed again.
install_package() {
    local extra="${1:-}" stamp wanted
    stamp="$VENV/installed${extra:+-$extra}"
    wanted="$(cksum <"$ROOT/pyproject.toml") $ROOT"
    if [[ -x "$VENV/bin/python" && -f "$stamp" && "$(<"$stamp")" == "$wanted" ]]; then
        return
    fi
    # An environment left half made by an interrupted run has no working pip.
    if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
        require_python
        echo "making the virtual environment .venv"
        "${PYTHON:-python3}" -m venv --clear "$VENV"
    fi
    echo "installing uttershard${extra:+[$extra]} into .venv (the first time this downloads PyTorch, several GB: minutes, without output)"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --editable "$ROOT${extra:+[$extra]}" ||
        fail "the installation failed; pip's message is above. Run the script again to continue"
    printf '%s\n' "$wanted" >"$stamp"
}
