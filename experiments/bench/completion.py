"""Scripts for tab completion of `python -m experiments` in bash, zsh and fish.

A script holds every command, key and value, so that a shell answers at once: starting Python for
each tab would take a second. Hydra's own completion knows neither `python -m` nor methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from string import Template

from experiments.bench.arguments import options_of
from experiments.bench.commands import Command
from experiments.bench.digest import ROOT
from experiments.bench.helptext import defaults_of
from experiments.bench.keys import keys_of

# The keys whose value may be a file or a folder.
_FILES = ("matrix", "records", "output", "folder")


def script(shell: str, commands: Iterable[Command], tools: Mapping[str, tuple[str, ...]]) -> str:
    """The script of a shell. tools: the words without configuration, and the values of each."""
    keys = {command.name: _keys(command) for command in commands}
    words = {**keys, **{name: dict.fromkeys(values, ()) for name, values in tools.items()}}
    template, join = SHELLS[shell]
    after_word = {name: [*own, *_options(name in keys)] for name, own in words.items()}
    after_key = {
        f"{name}:{key.removesuffix('=')}": values
        for name, own in keys.items()
        for key, values in own.items()
        if values
    }
    return Template(template).substitute(
        commands=" ".join(words),
        keys="\n".join(join(name, own) for name, own in after_word.items()),
        values="\n".join(join(path, own) for path, own in after_key.items()),
        files="|".join(_FILES),
        file_words=" ".join(_FILES),
    )


def _keys(command: Command) -> dict[str, tuple[str, ...]]:
    """What may follow a command, such as `dtype=`, and the values that may follow that."""
    groups = {f"{name}=": tuple(options_of(name)) for name in defaults_of(command)}
    own = {f"{key.path}=": key.values for key in keys_of(command.schema)}
    folders = {f"{key}=": _modules(packages) for key, packages in command.folders.items()}
    return {**own, **groups, **folders}


def _modules(packages: Iterable[str]) -> tuple[str, ...]:
    """The modules of these packages, whose import would take seconds."""
    folders = [ROOT / package.replace(".", "/") for package in packages]
    return tuple(sorted({path.stem for f in folders for path in f.glob("[a-z]*.py")}))


def _options(has_keys: bool) -> tuple[str, ...]:
    return ("-m", "--cfg", "--info", "--help") if has_keys else ("--help",)


def _case(name: str, words: Iterable[str]) -> str:
    return f'    {name}) echo "{" ".join(words)}" ;;'


def _fish_case(name: str, words: Iterable[str]) -> str:
    return f"        case {name}\n            printf '%s\\n' {' '.join(words)}"


_TABLES = """
_experiments_keys() {
  case $$1 in
$keys
  esac
}

_experiments_values() {
  case $$1 in
$values
  esac
}
"""

_BASH = (
    """# Tab completion of `python -m experiments`; in ~/.bashrc, from the folder of the clone:
# eval "$$(python -m experiments completion bash)"
"""
    + _TABLES
    + """
# What completed python before, for other modules.
if declare -F _comp_load >/dev/null; then
  _comp_load -- python
elif declare -F _completion_loader >/dev/null; then
  _completion_loader python
fi >/dev/null 2>&1
_experiments_spec=$$(complete -p python 2>/dev/null)
case $$_experiments_spec in
  *"-F _experiments "*) ;;
  *"-F "*)
    _experiments_before=$${_experiments_spec#*-F }
    _experiments_before=$${_experiments_before%% *}
    ;;
esac

_experiments() {
  local line=$${COMP_LINE:0:COMP_POINT} words at=0 i
  local token=$${line##*[[:space:]]} head="" key value before found=()
  read -ra words <<< "$$line"
  for ((i = 1; i + 1 < $${#words[@]}; i++)); do
    [[ $${words[i]} == -m && $${words[i+1]} == experiments ]] && at=$$((i + 1)) && break
  done
  if ((at == 0)) || [[ $$line == *experiments ]]; then
    [[ -n $$_experiments_before ]] && "$$_experiments_before" "$$@"
    return
  fi
  local command=$${words[at+1]} count=$$(($${#words[@]} - at - 1))
  [[ -z $$token ]] && count=$$((count + 1))
  if ((count == 1)); then
    COMPREPLY=($$(compgen -W "$commands" -- "$$token"))
    return
  fi
  if [[ $$token != *=* ]]; then
    local plus=""
    [[ $$token == +* ]] && plus="+"
    COMPREPLY=($$(compgen -P "$$plus" -W "$$(_experiments_keys "$$command")" -- "$${token#+}"))
    [[ $${#COMPREPLY[@]} == 1 && $${COMPREPLY[0]} == *= ]] && compopt -o nospace
    return
  fi
  key=$${token%%=*} value=$${token#*=} key=$${key#+}
  before=$${value%"$${value##*[,[]}"} value=$${value##*[,[]}
  found=($$(compgen -W "$$(_experiments_values "$$command:$$key")" -- "$$value"))
  if [[ "|$files|" == *"|$$key|"* ]]; then
    local IFS=$$'\\n' name
    for name in $$(compgen -f -- "$$value"); do
      [[ -d $$name ]] && name=$$name/ && compopt -o nospace
      found+=("$$name")
    done
  fi
  # Bash replaces what follows the last =, unless = does not break words.
  [[ $$COMP_WORDBREAKS == *=* ]] || head=$${token%%=*}=
  COMPREPLY=("$${found[@]/#/$$head$$before}")
}
complete -o default -F _experiments python python3
"""
)

_ZSH = (
    """# Tab completion of `python -m experiments`; in ~/.zshrc, after compinit:
# eval "$$(python -m experiments completion zsh)"
"""
    + _TABLES
    + """
_experiments() {
  local at=$${words[(i)experiments]}
  if ((at >= CURRENT)) || [[ $${words[at-1]} != -m ]]; then
    autoload -Uz _python && _python
    return
  fi
  local command=$${words[at+1]}
  if ((CURRENT == at + 1)); then
    compadd -- $commands
  elif [[ $$PREFIX != *=* ]]; then
    compset -P +
    compadd -S "" -- $${(M)$${=$$(_experiments_keys $$command)}:#*=}
    compadd -- $${$${=$$(_experiments_keys $$command)}:#*=}
  else
    local key=$${$${PREFIX%%=*}#+}
    compset -P "*[=,\\[]"
    compadd -- $${=$$(_experiments_values $$command:$$key)}
    [[ $$key == ($files) ]] && _files
  fi
}
compdef _experiments python python3
"""
)

_FISH = """# Tab completion of `python -m experiments`; in ~/.config/fish/config.fish:
# python -m experiments completion fish | source

function __experiments_keys
    switch $$argv[1]
$keys
    end
end

function __experiments_values
    switch $$argv[1]
$values
    end
end

function __experiments_words
    set -l words (commandline -opc)
    set -l at (contains -i -- experiments $$words)
    or return 1
    test $$at -gt 1
    or return 1
    set -l before (math $$at - 1)
    test "$$words[$$before]" = -m
    and printf '%s\\n' $$words[$$at..-1]
end

function __experiments
    set -l words (__experiments_words)
    set -l token (commandline -ct)
    if test (count $$words) -eq 1
        printf '%s\\n' (string split ' ' '$commands')
    else if not string match -q '*=*' -- $$token
        set -l plus (string match -r '^\\+' -- $$token)
        printf '%s\\n' $$plus(__experiments_keys $$words[2])
        test -n "$$plus"; or __experiments_keys $$words[2]
    else
        set -l key (string replace -r '^\\+?([^=]*)=.*' '$$1' -- $$token)
        set -l last (string replace -r '.*[=,\\[]' '' -- $$token)
        set -l length (math (string length -- $$token) - (string length -- "$$last"))
        set -l head (string sub -l $$length -- $$token)
        printf "$$head%s\\n" (__experiments_values $$words[2]:$$key)
        if contains -- $$key $file_words
            printf "$$head%s\\n" (__fish_complete_path "$$last" | string replace -r '\\t.*' '')
        end
    end
end

complete -c python -n __experiments_words -f -a '(__experiments)'
complete -c python3 -n __experiments_words -f -a '(__experiments)'
"""

# The template of each shell, and how it writes one case of a switch.
SHELLS = {"bash": (_BASH, _case), "zsh": (_ZSH, _case), "fish": (_FISH, _fish_case)}
