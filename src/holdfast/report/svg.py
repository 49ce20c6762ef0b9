"""Charts rendered when the page is made, so it needs no script: SVG that takes the page's colours and width."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import altair
import vl_convert

from holdfast.printable import printable

_NAMESPACE = "http://www.w3.org/2000/svg"
_NO_XML = {0xFFFE: "\\ufffe", 0xFFFF: "\\uffff"}  # not even as text
_TOLD = ("mark-symbol", "mark-rect")  # marks that show their description under the pointer
_NOT_NEEDED = ("role", "aria-label", "aria-hidden", "aria-roledescription")  # the picture has one description


def draw(spec: dict[str, Any], *, described_by: str) -> str:
    """A Vega-Lite chart as an ``<svg>`` element, described by the element of that id."""
    version = ".".join(altair.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    text: str = vl_convert.vegalite_to_svg(_shown(spec), vl_version=version, allowed_base_urls=[])
    ElementTree.register_namespace("", _NAMESPACE)
    picture = ElementTree.fromstring(text)
    _tell(picture)
    _simplify(picture)
    for name in ("width", "height", "version", "class"):
        picture.attrib.pop(name, None)
    picture.attrib |= {"role": "img", "aria-labelledby": described_by}
    return ElementTree.tostring(picture, encoding="unicode")


def _shown(value: Any) -> Any:
    """A specification whose texts XML can hold."""
    if isinstance(value, dict):
        return {name: _shown(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_shown(each) for each in value]
    return printable(value).translate(_NO_XML) if isinstance(value, str) else value


def _tell(picture: ElementTree.Element) -> None:
    """Give each mark its description as a title, which browsers show."""
    for group in picture.iter(f"{{{_NAMESPACE}}}g"):
        classes = group.get("class", "").split()
        if "role-mark" in classes and any(told in classes for told in _TOLD):
            for mark in group:
                if label := mark.get("aria-label"):
                    ElementTree.SubElement(mark, f"{{{_NAMESPACE}}}title").text = label


def _simplify(picture: ElementTree.Element) -> None:
    for element in list(picture.iter()):
        for name in _NOT_NEEDED:
            element.attrib.pop(name, None)
        for child in [each for each in element if each.get("class") in ("background", "foreground")]:
            element.remove(child)
