#!/usr/bin/env python3
"""Whether the words of a public function name its parameters: docs/site/parameters.py <XML of Doxygen>

The words are those of the function or of its class, because all calls of a class may share a parameter.
"The same ..." and "Like ..." stand for the words above it. Only HEADERS are held to this rule: a trainer calls them.
Doxygen has such a warning for @param alone, and these comments name a parameter within a sentence.
"""
import pathlib
import re
import sys
import xml.etree.ElementTree

HEADERS = ("offloader.hpp", "chunk.hpp", "buffer.hpp", "layers.hpp", "keyed.hpp", "graph.hpp",
           "host_state.hpp", "torch.hpp", "parse.hpp", "validate.hpp", "codec/fp8.hpp",
           "trace/picture.hpp", "trace/report.hpp", "trace/summary.hpp")
SHARES = ("The same", "Like ", "Does not compile", "The other")


def words(element):
    found = [each for tag in ("briefdescription", "detaileddescription") for each in element.find(tag).itertext()]
    return " ".join(found).strip()


def errors(compound):
    for function in compound.findall("sectiondef/memberdef[@kind='function'][@prot='public']"):
        place, own = function.find("location"), words(function)
        if place.get("file").removeprefix("tidepool/") not in HEADERS or not own or own.startswith(SHARES) or function.findtext("name").startswith("operator"):
            continue
        names = [each.text for each in function.findall("param/declname")]
        missing = [name for name in names if not re.search(rf"\b{name}\b", f"{own} {words(compound)}")]
        if missing:
            yield (f"include/{place.get('file')}:{place.get('line')}: the words of {function.findtext('name')} do not name "
                   f"{', '.join(missing)}")


def main(folder):
    compounds = [xml.etree.ElementTree.parse(path).find("compounddef") for path in sorted(folder.glob("*tidepool*.xml"))]
    described = {place.get("file") for compound in compounds for place in compound.iter("location")}
    absent = [f"{folder} describes nothing of {name}" for name in HEADERS if f"tidepool/{name}" not in described]
    return "\n".join(absent + [each for compound in compounds for each in errors(compound)])


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])) or 0)
