"""``ctrl p`` finds pages, commands, ranks, findings and words; one glossary explains words."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from textual.command import CommandList, CommandPalette, Hit
from textual.pilot import Pilot

from pardbg.cli import cli
from pardbg.ui.app import PardbgApp
from pardbg.ui.commands.actions import GLOSSARY, explain, glossary
from pardbg.ui.main.command_palette import Commands
from pardbg.ui.screens.row_pages import FindingsPage
from tests.ui.fakes import text_of, until
from tests.ui.recorded import key_names, replayed, settled


async def choose(pilot: Pilot[None], app: PardbgApp, typed: str) -> None:
    """Type into the palette, and take its first hit."""
    await pilot.press("ctrl+p")
    await until(lambda: isinstance(app.screen, CommandPalette), "open")
    await pilot.press(*key_names(typed))
    await until(lambda: first_hit(app).startswith(typed), typed)
    await pilot.press("enter")
    await until(lambda: not isinstance(app.screen, CommandPalette), "closed")
    await settled(app)


def first_hit(app: PardbgApp) -> str:
    listed = app.screen.query_one(CommandList)
    return str(listed.get_option_at_index(0).prompt).lower() if listed.option_count else ""


async def test_pages_commands_ranks_findings_and_words_are_found() -> None:
    async with replayed("fault-straggler", (120, 40)) as (app, pilot):
        await settled(app)
        await choose(pilot, app, "6 memory")
        assert app.main.active == "memory"
        await choose(pilot, app, "rank 3")
        assert app.main.shared.rank == 3
        await choose(pilot, app, "finding: strag")
        page = app.main.page
        assert isinstance(page, FindingsPage) and "straggler" in text_of(app)
        await choose(pilot, app, "word: bubble")
        assert "Idle share of a pipeline step" in text_of(app)


async def test_a_command_that_needs_an_argument_asks_for_it() -> None:
    async with replayed("1f1b", (80, 24)) as (app, pilot):
        await settled(app)
        await choose(pilot, app, "goto place")
        await until(lambda: app.main._prompting, "the prompt")
        await pilot.press(*key_names("step 3"), "enter")
        await until(lambda: app.main.shared.frame.snapshot.step == 3  # type: ignore[union-attr]
                    or "step 3" in text_of(app), "gone there")  # fmt: skip


async def test_nothing_is_found_for_nonsense() -> None:
    async with replayed("1f1b", (80, 24)) as (app, _):
        found = [hit async for hit in Commands(app.screen).search("qqxzzq")]
        assert found == []
        hits = [hit async for hit in Commands(app.screen).search("1f1b")]
        assert any(isinstance(hit, Hit) for hit in hits)


def test_a_word_means_one_thing_wherever_one_asks() -> None:
    for names, text in GLOSSARY:
        for name in names:
            assert glossary(name)[:2] == [", ".join(names), f"  {text}"], name
            assert set(glossary(name)) <= set(explain(name))


def test_words_of_the_command_line_help() -> None:
    for word in ("bubble", "implied", "1f1b", "zero", "ring", "zero bubble", "BusBW"):
        done = CliRunner().invoke(cli, ["help", *word.split()])
        assert done.exit_code == 0 and glossary(word)[0] in done.output, done.output
    assert CliRunner().invoke(cli, ["help", "no-such-word"]).exit_code == 2


@pytest.mark.parametrize("verb", ["step", "tick", "level"])
def test_a_verb_keeps_its_own_help(verb: str) -> None:
    assert any(line.startswith(verb) for line in explain(verb))


async def test_help_searches_words() -> None:
    async with replayed("1f1b", (120, 40)) as (app, pilot):
        await settled(app)
        await pilot.press("question_mark", "slash", *"busbw")
        await until(lambda: "Bytes by time" in text_of(app), text_of(app))


async def test_enter_twice_closes_the_palette_once() -> None:
    """As keys of a slow terminal come: the second before the first one's command ran."""
    async with replayed("1f1b", (80, 24)) as (app, pilot):
        await settled(app)
        await pilot.press("ctrl+p")
        await until(lambda: isinstance(app.screen, CommandPalette), "open")
        palette = app.screen
        assert isinstance(palette, CommandPalette)
        palette.dismiss()
        palette.dismiss()
        await until(lambda: app.screen is app.main, "closed, and the app runs")
