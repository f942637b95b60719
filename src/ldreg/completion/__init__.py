"""Completion of `ldreg` in a shell: from a table of all commands and options, since reading them anew takes seconds.

`options.json` has for every command the words that may follow it, and its options with the values of each; null where
any value may stand, and the shell offers files. `make completion` writes it, and a test holds it to the commands.
"""

import json
from importlib.resources import files
from typing import Literal, get_args

Shell = Literal["bash", "zsh"]
SHELLS = get_args(Shell)

_BASH = """# Completion of ldreg; in ~/.bashrc: eval "$(ldreg completion bash)"
_ldreg() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" command="" words=""
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
        *)
            case "$command:$current" in
{words}
            esac ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
# Where nothing is offered, files are.
complete -o bashdefault -o default -F _ldreg ldreg
"""

_ZSH = """# Completion of ldreg; in ~/.zshrc: eval "$(ldreg completion zsh)"
autoload -Uz compinit bashcompinit && compinit && bashcompinit
"""

Values = dict[str, list[str] | None]


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
    known = table()
    body = _BASH.format(
        values="\n".join(line for command, (_, options) in known.items() for line in _value_lines(command, options)),
        words="\n".join(
            line for command, (words, options) in known.items() for line in _word_lines(command, words, options)
        ),
    )
    return _ZSH + body.partition("\n")[2] if shell == "zsh" else body


def _value_lines(command: str, options: Values) -> list[str]:
    """What may follow an option that takes a value."""
    lines = [f'        "{command} {name}") words="{" ".join(values)}" ;;' for name, values in options.items() if values]
    free = [f'"{command} {name}"' for name, values in options.items() if values is None]
    return lines + ([f"        {' | '.join(free)}) return ;;"] if free else [])


def _word_lines(command: str, words: list[str], options: Values) -> list[str]:
    """What may stand elsewhere: options after a dash, else words."""
    named = " ".join([*options, "--help"])
    lines = [f'                "{command}:-"*) words="{named}" ;;']
    return lines + ([f'                "{command}:"*) words="{" ".join(words)}" ;;'] if words else [])
