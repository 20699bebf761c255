"""``llmbroker completion``: scripts that complete commands and options in a shell."""

from __future__ import annotations

import argparse

HELP = {
    "completion": "Print the completion script of a shell.\n\n"
    '  eval "$(llmbroker completion bash)"       in ~/.bashrc\n'
    '  eval "$(llmbroker completion zsh)"        in ~/.zshrc, after compinit\n'
    "  llmbroker completion fish > ~/.config/fish/completions/llmbroker.fish"
}


def completion_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def completion(arguments: argparse.Namespace) -> int:
    """Print the script."""
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[arguments.shell]())
    return 0


def _options() -> dict[str, list[tuple[str, str]]]:
    """Return each command's long options with their help."""
    from llmbroker.faces.cli import COMMANDS, parser_of

    found: dict[str, list[tuple[str, str]]] = {}
    for name in COMMANDS:
        found[name] = []
        for action in parser_of(name)._actions:
            words = (action.help or "").split("\n")[0].replace("'", "")
            if action.option_strings:
                found[name].append((action.option_strings[-1], words))
            elif action.choices:
                found[name] += [(str(choice), "") for choice in action.choices]
    return found


def _bash() -> str:
    options = _options()
    cases = "\n".join(f"    {name}) words='{' '.join(word for word, _ in found)}' ;;" for name, found in options.items())
    return f"""_llmbroker() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" words
  if [ "$COMP_CWORD" -eq 1 ]; then
    words='{" ".join(options)} --help --version'
  else
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  [ "${{#COMPREPLY[@]}}" -gt 0 ] || COMPREPLY=($(compgen -f -- "$current"))
}}
complete -F _llmbroker llmbroker"""


def _zsh() -> str:
    options = _options()
    from llmbroker.faces.cli import COMMANDS

    commands = " ".join(f"'{name}:{words.replace(':', ' -').replace(chr(39), '')}'" for name, (_, words) in COMMANDS.items())
    cases = "\n".join(f"    {name}) compadd -- {' '.join(word for word, _ in found)} ;;" for name, found in options.items())
    return f"""_llmbroker() {{
  if (( CURRENT == 2 )); then
    local -a commands=({commands})
    _describe command commands
    return
  fi
  case "$words[2]" in
{cases}
  esac
  _files
}}
compdef _llmbroker llmbroker"""


def _fish() -> str:
    from llmbroker.faces.cli import COMMANDS

    lines = ["complete -c llmbroker -n __fish_use_subcommand -f"]
    for name, (_, words) in COMMANDS.items():
        shown = words.replace("'", "")
        lines.append(f"complete -c llmbroker -n __fish_use_subcommand -a {name} -d '{shown}'")
    for name, found in _options().items():
        for word, words in found:
            what = f"-l {word.removeprefix('--')}" if word.startswith("--") else f"-a {word}"
            lines.append(f"complete -c llmbroker -n '__fish_seen_subcommand_from {name}' {what} -d '{words}'")
    return "\n".join(lines)
