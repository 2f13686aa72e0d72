"""`brokerctl completion` and `man`: what a shell and man(1) need, written from the commands
themselves.
"""

from __future__ import annotations

from pathlib import Path

import click
from click import shell_completion

from brokerd.ctl import errors, settings

PROGRAM, BROKER = "brokerctl", "brokerd"
SHELLS = ("bash", "zsh", "fish")


@click.command(cls=settings.Command)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Write the completion of commands and options for a shell to standard output.

    \b
    bash   source <(brokerctl completion bash), in ~/.bashrc
    zsh    source <(brokerctl completion zsh), in ~/.zshrc behind compinit
    fish   brokerctl completion fish > ~/.config/fish/completions/brokerctl.fish
    """
    kind = shell_completion.get_completion_class(shell)
    assert kind is not None
    root = click.get_current_context().find_root().command
    # Not `source`: it starts a bash to ask for its version.
    made = kind(root, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE")
    click.echo(made.source_template % made.source_vars())


@click.command(cls=settings.Command)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def man(folder: Path) -> None:
    """Write manual pages of brokerctl, of each of its commands and of brokerd into a folder.

    For example ~/.local/share/man/man1, where man(1) looks.
    """
    import importlib.metadata

    from brokerd.ctl import man_pages

    root = click.get_current_context().find_root().command
    assert isinstance(root, click.Group)
    made = man_pages.pages(root, PROGRAM)
    # By its entry point, as commands of other parts are found: this room does not know the server.
    for point in importlib.metadata.entry_points(group="console_scripts", name=BROKER):
        made |= man_pages.pages(point.load(), BROKER)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in made.items():
            (folder / f"{name}.1").write_text(text, encoding="utf-8")
    except OSError as error:
        raise errors.CtlError(
            f"cannot write {error.filename}: {error.strerror}", errors.EXIT_DATA
        ) from error
    settings.current().say(f"wrote {len(made)} manual pages into {folder}: man brokerctl")
