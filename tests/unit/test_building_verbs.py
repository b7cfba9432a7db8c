from __future__ import annotations

import re

import pytest
from invoke.context import Context

from images.building_verbs import build_image
from images.components import read_components
from lanewise.errors import InputError


def build(**options: object) -> None:
    build_image.body.__wrapped__(Context(), toolchain="cu130", plan=True, **options)


def test_the_setting_that_a_refusal_gives_as_an_example_exists() -> None:
    with pytest.raises(InputError, match="--set is 'nonsense'") as caught:
        build(set=["nonsense"])
    example = re.search(r"e\.g\. ([a-z-]+)\.(\w+)=", caught.value.expected)
    assert example is not None
    assert example[2] in read_components()[example[1]].settings


@pytest.mark.parametrize("jobs", [-1, 1025, 10**20])
def test_a_job_count_that_no_machine_has_is_refused(jobs: int) -> None:
    with pytest.raises(InputError, match=f"--jobs is {jobs}") as caught:
        build(jobs=jobs)
    assert caught.value.expected == "0 to 1,024"
