"""Why an image is where it is, in words that claim no more than is known."""

import base64
import io

from promptccd.app.html import render
from promptccd.discovery.session import DiscoverySession
from promptccd.runs.explanation import Explanation

MOST_PROMPTS = 5


def why_html(session: DiscoverySession, key: str) -> str:
    """What the model looked at in an image, which of its prompts fired, and the nearest categories.

    Raises:
        DataError: there is no such image in this session, or no group that it could be nearest to.
    """
    found = session.why(key)
    standing = session.standing()
    stands = None
    if key in standing.keys:
        row, grouping = standing.keys.index(key), standing.grouping
        second = int(grouping.second_ids[row])
        stands = {
            "category": session.registry.category(int(grouping.category_ids[row])),
            "confidence": float(grouping.confidences[row]),
            "distance": float(grouping.distances[row]),
            "second": session.registry.category(second) if second >= 0 else None,
            "second_distance": float(grouping.second_distances[row]),
            "pinned": key in session.registry.constraints().pinned,
        }
    return render(
        "why.html.jinja",
        name=session.file_of(key)[1].name,
        picture=_overlay_uri(found),
        has_parts=found.parts is not None,
        prompts=found.to_dict().get("prompts", [])[:MOST_PROMPTS],
        stands=stands,
    )


def _overlay_uri(found: Explanation) -> str:
    stream = io.BytesIO()
    found.overlay().save(stream, "JPEG", quality=88)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}"
