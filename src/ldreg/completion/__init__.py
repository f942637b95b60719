"""Completion of `ldreg` in a shell: from a table of all commands and options, since reading them anew takes seconds.

`options.json` has for every command the words that may follow it, and its options with the values of each; null where
any value may stand, and the shell offers files. `make completion` writes it, and a test holds it to the commands.
"""

import json
from collections.abc import Callable
from importlib.resources import files
from typing import Literal

Shell = Literal["bash", "zsh", "fish"]

# Each finds the command, the word before the current one and the current one up to the cursor; what is offered then
# comes from the table. Where that is nothing, files are.
_BASH = """# Completion of ldreg; in ~/.bashrc: eval "$(ldreg completion bash)"
_ldreg() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" command="" offered=""
    local IFS=$' \\t\\n' # words part here, whatever the user has set
    # --option=value comes as three words.
    if [ "$current" = "=" ]; then
        current=""
    elif [ "$before" = "=" ]; then
        before="${{COMP_WORDS[COMP_CWORD-2]}}"
    fi
    if [ "$COMP_CWORD" -gt 2 ] && [ "${{COMP_WORDS[1]}}" = evaluate ]; then
        command="evaluate ${{COMP_WORDS[2]}}"
    elif [ "$COMP_CWORD" -gt 1 ]; then
        command="${{COMP_WORDS[1]}}"
    fi
    case "$command $before" in
{values}
    *) case "$command:$current" in
{words}
    esac ;;
    esac
    COMPREPLY=($(compgen -W "$offered" -- "$current"))
}}
complete -o bashdefault -o default -F _ldreg ldreg
"""

_ZSH = """# Completion of ldreg; in ~/.zshrc, after compinit if that is there: eval "$(ldreg completion zsh)"
_ldreg() {{
    local before="$words[CURRENT-1]" command="" offered=""
    # --option=value comes as one word; what follows the sign is completed.
    if [[ "$PREFIX" == --*=* ]]; then
        before="${{PREFIX%%=*}}"
        compset -P 1 '*='
    fi
    if (( CURRENT > 3 )) && [[ "$words[2]" == evaluate ]]; then
        command="evaluate $words[3]"
    elif (( CURRENT > 2 )); then
        command="$words[2]"
    fi
    case "$command $before" in
{values}
    *) case "$command:$PREFIX" in
{words}
    esac ;;
    esac
    compadd -- ${{=offered}} || _files || {{ compset -P '*=' && _files; }}  # as name=FILE
}}
# A second compinit would forget what others have added since the first.
(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit; }}
compdef _ldreg ldreg
"""

_FISH = """# Completion of ldreg; in ~/.config/fish/config.fish: ldreg completion fish | source
function _ldreg
    set -l line (commandline -opc)
    set -l current (commandline -ct)
    set -l before $line[-1]
    set -l command ''
    set -l start ''
    set -l offered
    # --option=value comes as one word, and is offered as one.
    if string match -q -- '--*=*' $current
        set before (string split -m 1 = -- $current)[1]
        set start "$before="
    end
    if test (count $line) -gt 2; and test $line[2] = evaluate
        set command "evaluate $line[3]"
    else if test (count $line) -gt 1
        set command $line[2]
    end
    switch "$command $before"
{values}
    case '*'
        switch "$command:$current"
{words}
        end
    end
    test -n "$offered"; and printf '%s\\n' $start$offered
end
complete -c ldreg -a '(_ldreg)'
# No files beside words that begin like the current one.
complete -c ldreg -n '_ldreg | string match -q -- (commandline -ct)"*"' -f
"""

Values = dict[str, list[str] | None]
Branch = tuple[list[str], list[str]]  # patterns, any of which has to match, and what is offered then


def table() -> dict[str, tuple[list[str], Values]]:
    """The words that may follow each command, and its options with their values; of `evaluate` each kind is one.

    >>> table()["inspect"][1]["--estimator"]
    ['mom', 'mle', 'tle']
    """
    told = json.loads((files(__name__) / "options.json").read_text(encoding="utf-8"))
    return {command: (entry["words"], entry["options"]) for command, entry in told.items()}


def script(shell: Shell) -> str:
    """What the shell is to evaluate.

    >>> script("bash").count("--estimator") > 1
    True
    """
    template, branch = _SHELLS[shell]
    values, words = _value_branches(), _word_branches()
    return template.format(
        values="\n".join(branch(patterns, offered) for patterns, offered in values),
        words="\n".join(branch(patterns, offered) for patterns, offered in words),
    )


def _value_branches() -> list[Branch]:
    """What may follow an option that takes a value, by the command and the option."""
    branches = []
    for command, (_, options) in table().items():
        branches += [([f"{command} {name}"], values) for name, values in options.items() if values]
        free = [f"{command} {name}" for name, values in options.items() if values is None]
        branches += [(free, [])] if free else []
    return branches


def _word_branches() -> list[Branch]:
    """What may stand elsewhere, by the command and how the current word begins: options after a dash, else words."""
    branches = []
    for command, (words, options) in table().items():
        branches.append(([f"{command}:-*"], [*options, "--help"]))
        branches += [([f"{command}:*"], words)] if words else []
    return branches


def _posix_branch(patterns: list[str], offered: list[str]) -> str:
    """A branch of `case` in bash and zsh.

    >>> _posix_branch(["bench:*"], ["lid", "step"])
    '    "bench:"*) offered="lid step" ;;'
    """
    quoted = " | ".join(f'"{pattern.removesuffix("*")}"' + "*" * pattern.endswith("*") for pattern in patterns)
    return f'    {quoted}) offered="{" ".join(offered)}" ;;'


def _fish_branch(patterns: list[str], offered: list[str]) -> str:
    """A branch of `switch` in fish.

    >>> _fish_branch(["bench:*"], ["lid", "step"])
    "    case 'bench:*'; set offered lid step"
    """
    quoted = " ".join(f"'{pattern}'" for pattern in patterns)
    return f"    case {quoted}; set offered {' '.join(offered)}".rstrip()


_SHELLS: dict[Shell, tuple[str, Callable[[list[str], list[str]], str]]] = {
    "bash": (_BASH, _posix_branch),
    "zsh": (_ZSH, _posix_branch),
    "fish": (_FISH, _fish_branch),
}
