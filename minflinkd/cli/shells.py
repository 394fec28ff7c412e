"""The scripts of the shells, and what they tell of the line: Click's, where those would spoil it.

Click's own do not complete `--job=cl` in bash and fish, and in zsh the name takes the option's place. In bash they do
not complete a word with a colon in it, and in fish a description ends at its first comma.
"""

from __future__ import annotations

import os
from typing import Final

from click.shell_completion import (
    BashComplete,
    FishComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

# Bash breaks words at `=`, `:` and `@`, and replaces the last part only. `cur` is the whole word, without its option.
_BASH: Final = """\
%(complete_func)s() {
    local IFS=$'\\n' line=${COMP_LINE:0:COMP_POINT} part=${COMP_WORDS[COMP_CWORD]} response completion type value
    local cur=${line##*[[:space:]]}
    [[ $cur == --*=* ]] && cur=${cur#*=}
    [[ $part == [=:@] ]] && part=

    response=$(env COMP_LINE="$line" %(complete_var)s=bash_complete $1)

    for completion in $response; do
        IFS=',' read type value <<< "$completion"

        if [[ $type == 'dir' ]]; then
            COMPREPLY=()
            compopt -o dirnames
        elif [[ $type == 'file' ]]; then
            COMPREPLY=()
            compopt -o default
        elif [[ $type == 'plain' ]]; then
            COMPREPLY+=("${value#"${cur%%"$part"}"}")
        fi
    done

    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""
_ZSH: Final = """\
#compdef %(prog_name)s

%(complete_func)s() {
    local -a completions completions_with_descriptions response
    local type key descr option=
    (( ! $+commands[%(prog_name)s] )) && return 1
    [[ $PREFIX == --*=* ]] && option="${PREFIX%%%%=*}="

    response=("${(@f)$(env COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1)) %(complete_var)s=zsh_complete \
%(prog_name)s)}")

    for type key descr in ${response}; do
        if [[ "$type" == "plain" ]]; then
            if [[ "$descr" == "_" ]]; then
                completions+=("$option$key")
            else
                completions_with_descriptions+=("$option$key":"$descr")
            fi
        elif [[ "$type" == "dir" ]]; then
            compset -P 1 '--*='
            _path_files -/
        elif [[ "$type" == "file" ]]; then
            compset -P 1 '--*='
            _path_files -f
        fi
    done

    if [ -n "$completions_with_descriptions" ]; then
        _describe -V unsorted completions_with_descriptions -U
    fi

    if [ -n "$completions" ]; then
        compadd -U -V unsorted -a completions
    fi
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""
_FISH: Final = """\
function %(complete_func)s;
    set -l option (string match --regex -- '^--[^=]+=' (commandline -ct));
    set -l response (env %(complete_var)s=fish_complete COMP_WORDS=(commandline -cp) COMP_CWORD=(commandline -t) \
%(prog_name)s);

    for completion in $response;
        set -l metadata (string split --max 1 -- "," $completion);

        if test $metadata[1] = "dir";
            __fish_complete_directories $metadata[2] | string replace --regex -- '^' "$option";
        else if test $metadata[1] = "file";
            __fish_complete_path $metadata[2] | string replace --regex -- '^' "$option";
        else if test $metadata[1] = "plain";
            echo "$option$metadata[2]";
        end;
    end;
end;

complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)";
"""


class Bash(BashComplete):
    source_template = _BASH

    @staticmethod
    def _check_version() -> None:
        """Do not run bash to learn its version, as Click does."""

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ.get("COMP_LINE")
        if line is None:
            return super().get_completion_args()
        words = split_arg_string(line)
        incomplete = "" if line[-1:].isspace() else words.pop()
        return words[1:], incomplete


class Zsh(ZshComplete):
    source_template = _ZSH


class Fish(FishComplete):
    source_template = _FISH


def register() -> None:
    """Let Click use these."""
    for shell in (Bash, Zsh, Fish):
        add_completion_class(shell)
