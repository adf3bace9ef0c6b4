"""Formulas of pages as MathML."""

import re
from xml.etree import ElementTree

import pytest

from docs.website import formulas
from tests.docs.snippets import DOCUMENTS, ROOT


def text(element):
    """The structure of a formula, as a reader would write it."""
    children = [text(child) for child in element]
    match element.tag:
        case "mfrac":
            return f"({children[0]})/({children[1]})"
        case "msqrt":
            return f"sqrt({''.join(children)})"
        case "msub":
            return f"{children[0]}_[{children[1]}]"
        case "msup":
            return f"{children[0]}^[{children[1]}]"
        case "msubsup":
            return f"{children[0]}_[{children[1]}]^[{children[2]}]"
    plain = (element.text or "").translate({0x2212: "-", 0x2032: "'", 0x2217: "*"})
    return plain + "".join(children)


@pytest.mark.parametrize(
    ("formula", "structure"),
    [
        (r"e^{-a|u|/\Delta}", "e^[-a|u|/Δ]"),
        (r"\frac{d}{r}\,\mathrm{Beta}(r/2,(d-r)/2)", "(d)/(r)Beta(r/2,(d-r)/2)"),
        (r"\sqrt{R^2+1-2Rc}-R", "sqrt(R^[2]+1-2Rc)-R"),
        (r"\sum_j(v_j/h_j)^2\leq1", "∑_[j](v_[j]/h_[j])^[2]≤1"),
        (r"x_i^2, x^2_i", "x_[i]^[2],x_[i]^[2]"),
        (r"X'", "X^[']"),
        (r"1.3\cdot10^{-19}", "1.3·10^[-19]"),
        (r"\left(\max_a e_a\right)", "(max_[a]e_[a])"),
        (r"p<q", "p<q"),
        (r"g^*/m", "g^[*]/m"),
    ],
)
def test_a_formula_keeps_its_structure(formula, structure):
    assert text(ElementTree.fromstring(formulas.mathml(formula))) == structure


def test_a_comma_ends_a_number():
    formula = ElementTree.fromstring(formulas.mathml("N(0,2k)"))
    assert [number.text for number in formula.iter("mn")] == ["0", "2"]


def test_a_command_that_is_not_known_ends_the_build():
    for formula in (r"\wrong{x}", r"e^{x"):
        with pytest.raises(ValueError, match="formula"):
            formulas.typeset(f"${formula}$")


def test_code_is_left_as_it_is_and_all_else_is_typeset():
    page = "`$a$` and $a$\n\n```bash\necho $A $B\n```\n\n$$b$$\n"
    made = formulas.typeset(page)
    assert "`$a$`" in made
    assert "echo $A $B" in made
    assert "*" not in formulas.typeset("$g^*$ and $h^*$")  # emphasis to Markdown
    assert re.findall(r"<math[^>]*>", made) == ["<math>", '<math display="block">']


def test_every_formula_of_every_page_is_one_element():
    counts = {}
    for name in DOCUMENTS:
        made = formulas.typeset((ROOT / name).read_text(encoding="utf-8"))
        elements = re.findall(r"<math.*?</math>", made, re.DOTALL)
        counts[name] = [ElementTree.fromstring(element).tag for element in elements]
    assert len(counts["docs/privacy.md"]) > 300
    assert {tag for tags in counts.values() for tag in tags} == {"math"}
