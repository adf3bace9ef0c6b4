"""Mutation testing of the parts where a fault costs privacy: ``make mutants``, with docs/developers/mutants.md.

A script, run by its path: it copies the sources into out/mutants with both packages of ``shared`` at the top, because
mutmut derives a module's name from its path, and runs mutmut there. Results are kept: a second run goes on.

    python tests/mutants.py run 'curator_service.budget.ledger.*'
    python tests/mutants.py run again 'curator_service.budget.ledger.*'    # survivors too, after new tests
    python tests/mutants.py survivors 'curator_service.privacy.*'
    python tests/mutants.py table
"""

import fnmatch
import gc
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / "out" / "mutants"
FOLDERS = ("curator_service", "modeler_service", "shared/blindopt", "shared/service_kit", "tests", "docs", "demo")
SKIPPED_DECORATORS = ("overload", "abstractmethod", "field_validator", "model_validator")
LONGEST_TEST_SECONDS = 2.0  # what takes longer repeats, in another way, what a short test holds
STATUS = {0: "survived", 1: "killed", 3: "killed", 33: "no test", 5: "no test", None: "not run"}


def copy_sources() -> None:
    """Copy what changed; the time of change is kept, which tells mutmut what to mutate anew."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            target = TREE / Path(folder).name / path.relative_to(ROOT / folder)
            if path.is_dir() or "__pycache__" in path.parts:
                continue
            if not target.exists() or target.stat().st_mtime_ns != path.stat().st_mtime_ns:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)
    configuration = [(ROOT / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "tests/mutants.toml")]
    (TREE / "pyproject.toml").write_text("\n".join(configuration), encoding="utf-8")


def extend_mutmut() -> None:
    """Make mutmut leave prose alone, mutate decorated functions as well, and run the shortest tests first."""
    import libcst as cst
    import pytest
    from mutmut.mutation import file_mutation
    from mutmut.runners.harness import PytestRunner
    from mutmut.state import state
    from mutmut.workers.isolation import ForkServerRunner

    def is_prose(node: cst.CSTNode) -> bool:
        if isinstance(node, cst.SimpleString):
            return " " in node.value
        return isinstance(node, cst.FormattedString | cst.ConcatenatedString)

    def says_only_prose(node: cst.CSTNode) -> bool:
        """Whether a statement is like ``raise ValueError("...")``, where there is nothing else to mutate."""
        call = node.exc if isinstance(node, cst.Raise) else None
        return isinstance(call, cst.Call) and all(is_prose(argument.value) for argument in call.args)

    def is_trampoline_safe(node: cst.CSTNode) -> bool:
        names = {cst.Module([]).code_for_node(each.decorator) for each in node.decorators}
        return not any(skipped in name for skipped in SKIPPED_DECORATORS for name in names)

    visitor, skip = file_mutation.MutationVisitor, file_mutation.MutationVisitor._skip_node_and_children

    def skip_node(self, node):
        if is_prose(node) or says_only_prose(node):
            return True
        if isinstance(node, cst.FunctionDef) and node.decorators and is_trampoline_safe(node):
            return False
        return skip(self, node)

    visitor._skip_node_and_children = skip_node
    arrange = file_mutation.function_trampoline_arrangement

    def arrange_decorated(function, mutants, class_name):
        """Decorate the trampoline, and leave the original and its mutants bare: classmethods mutmut does itself."""
        bound = [
            cst.Module([]).code_for_node(each.decorator) in {"classmethod", "staticmethod"}
            for each in function.decorators
        ]
        if any(bound):
            return arrange(function, mutants, class_name)
        declared, nodes, assigned, names = arrange(function.with_changes(decorators=[]), mutants, class_name)
        nodes[0] = nodes[0].with_changes(decorators=[*function.decorators, *nodes[0].decorators])
        return declared, nodes, assigned, names

    file_mutation.function_trampoline_arrangement = arrange_decorated
    submit = ForkServerRunner.submit

    def submit_sorted(self, mutant_name, tests, *limits):
        seconds = state().duration_by_test
        shortest = sorted((test for test in tests if seconds[test] < LONGEST_TEST_SECONDS), key=seconds.__getitem__)
        return submit(self, mutant_name, shortest, *limits)

    ForkServerRunner.submit = submit_sorted

    class ShortestFirst:
        """Whatever the order that the tests themselves ask for."""

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, items):
            items.sort(key=lambda item: state().duration_by_test.get(item.nodeid, 0.0))

    class ForgetCached:
        """Each test calls cached functions anew, so that it counts among the tests of what they call."""

        def pytest_runtest_setup(self, item):
            for name, module in list(sys.modules.items()):
                if name.startswith("curator_service.") and not name.endswith(".loading"):
                    for value in list(vars(module).values()):
                        if hasattr(value, "cache_clear"):
                            value.cache_clear()

    execute = PytestRunner.execute_pytest

    def execute_forgetting(self, params, plugins=(), **options):
        # Its two full collections of garbage took three quarters of the time of a mutant.
        params = [*params, "-p", "no:unraisableexception"]
        return execute(self, params, plugins=[*plugins, ShortestFirst(), ForgetCached()], **options)

    PytestRunner.execute_pytest = execute_forgetting
    warm_up = PytestRunner.warm_up

    def warm_up_and_freeze(self):
        warm_up(self)
        gc.collect()
        gc.freeze()

    PytestRunner.warm_up = warm_up_and_freeze


def results(patterns: list[str]) -> Iterator[tuple[str, str, str]]:
    """File, name and status of each mutant."""
    for meta in sorted((TREE / "mutants").rglob("*.py.meta")):
        codes = json.loads(meta.read_text())["exit_code_by_key"]
        for name, code in codes.items():
            if not patterns or any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
                file = str(meta.relative_to(TREE / "mutants")).removesuffix(".meta")
                yield file, name, STATUS.get(code, "timeout")


def table() -> None:
    """Print a line for each module."""
    counts: dict[str, Counter[str]] = {}
    for file, _, status in results([]):
        counts.setdefault(file, Counter())[status] += 1
    counts["in all"] = sum(counts.values(), Counter())
    columns = ("killed", "timeout", "survived", "no test", "not run")
    print("| module | mutants |", " | ".join(columns), "|")
    for file, count in counts.items():
        print(f"| {file} | {count.total()} |", " | ".join(str(count[column]) for column in columns), "|")


def main(verb: str, *patterns: str) -> None:
    """Run, or read what ran."""
    if verb == "table":
        return table()
    if verb == "run":
        copy_sources()
    os.chdir(TREE)
    extend_mutmut()
    from mutmut.__main__ import cli
    from mutmut.mutation.diff_apply import get_diff_for_mutant

    if verb == "run":
        # Of mutants that are named mutmut forgets the result: name those alone that have none, or survived.
        wanted = {"survived", "no test", "not run"} if patterns[:1] == ("again",) else {"not run"}
        names = [name for _, name, status in results([p for p in patterns if p != "again"]) if status in wanted]
        cli(["run", "--max-children", "1", *(names or patterns)])
    for _, name, status in results(list(patterns)) if verb == "survivors" else ():
        if status in {"survived", "no test"}:
            lines = get_diff_for_mutant(name).splitlines()[2:]
            print(f"{name}: {status}", *(line for line in lines if line[:1] in "+-"), sep="\n")
    return None


if __name__ == "__main__":
    del sys.path[0]  # the folder of this script
    main(*(sys.argv[1:] or ["run"]))
