"""`key`: new keys for a service that does not run."""

from typing import Annotated

import typer

from service_kit.cli.program import Program, S, plain_errors


def build(program: Program[S]) -> typer.Typer:
    cli = typer.Typer(no_args_is_help=True, help="The keys of this service, in the folder secrets.")

    @cli.command()
    def rotate(
        which: Annotated[str, typer.Argument(help="log: the key that signs. seal: the key of stored secrets.")],
    ) -> None:
        """Replace a key. Stop the service first; copy the folder secrets again afterwards.

        log: the old key signs a record that names the new one, and who pinned the old one follows. seal: all that is
        sealed is sealed again, in one transaction; users log in again. A backup of before needs the keys of before.

        Example: blindopt-curator key rotate log
        """
        from service_kit.context import key_rotation

        if which not in ("log", "seal"):
            raise typer.BadParameter("log or seal", param_hint="WHICH")
        with plain_errors():
            settings = program.existing()
            with program.alone(settings), program.open_context(settings) as opened:
                key_rotation.rotate(opened, settings.data_dir / "secrets", "log" if which == "log" else "seal")
        with program.opened() as opened:
            typer.echo(opened.signer.verifier.vkey if which == "log" else "sealed again with a new key")

    return cli
