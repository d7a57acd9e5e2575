"""Every schedule worked by hand on few stages: what each stage runs and sends, event by event, as its file has it.

A forward takes one unit of time, and so does either part of a backward; sends take none. A transfer stands before what
its stage begins at the time of the transfer. F is a forward, B a whole backward, I and W are the gradients of inputs
and of weights, and I has both of the head; a number is the microbatch, the one behind the point the chunk of layers. sF
and rF are the send and the receive of what a forward makes, sB and rB of gradients, with the chunk that makes them.
"""

import pytest

import dsx
from dsx.traces.codec import COMM_RECV, COMM_SEND, COMP
from dsx.traces.read import open_folder, traces

BY_HAND = {
    # F1.0 is there at 2, when the second stage has run F0.1; B0.1 takes it until 4.
    ("1f1b", 2, 1, 3): [
        "F0.0 sF0.0 F1.0 sF1.0 rB0.1 B0.0 F2.0 sF2.0 rB1.1 B1.0 rB2.1 B2.0",
        "rF0.0 F0.1 rF1.0 B0.1 sB0.1 F1.1 B1.1 rF2.0 sB1.1 F2.1 B2.1 sB2.1",
    ],
    # Chunks 0 and 2 on the first stage, 1 and 3 on the second. The first stage runs all four forwards, the second one
    # two before it alternates. B0.2 ends at 8, while B1.3 runs from 7 to 9.
    ("1f1b", 2, 2, 2): [
        "F0.0 sF0.0 F1.0 sF1.0 rF0.1 F0.2 sF0.2 rF1.1 F1.2 sF1.2 rB0.3 B0.2 sB0.2 rB1.3 B1.2 sB1.2 rB0.1 B0.0 "
        "rB1.1 B1.0",
        "rF0.0 F0.1 rF1.0 sF0.1 F1.1 rF0.2 sF1.1 F0.3 rF1.2 B0.3 sB0.3 F1.3 B1.3 rB0.2 sB1.3 B0.1 rB1.2 sB0.1 "
        "B1.1 sB1.1",
    ],
    ("gpipe", 3, 1, 2): [
        "F0.0 sF0.0 F1.0 sF1.0 rB0.1 B0.0 rB1.1 B1.0",
        "rF0.0 F0.1 rF1.0 sF0.1 F1.1 sF1.1 rB0.2 B0.1 sB0.1 rB1.2 B1.1 sB1.1",
        "rF0.1 F0.2 rF1.1 F1.2 B0.2 sB0.2 B1.2 sB1.2",
    ],
    # The middle stage: I0.1 at 4, F2.1 at 5, I1.1 at 6, and W0.1 at 7 while it waits for I2.2, which ends at 8.
    ("zb-h1", 3, 1, 3): [
        "F0.0 sF0.0 F1.0 sF1.0 F2.0 sF2.0 rB0.1 I0.0 W0.0 rB1.1 I1.0 W1.0 rB2.1 I2.0 W2.0",
        "rF0.0 F0.1 rF1.0 sF0.1 F1.1 rF2.0 sF1.1 rB0.2 I0.1 sB0.1 F2.1 sF2.1 rB1.2 I1.1 sB1.1 W0.1 rB2.2 I2.1 "
        "sB2.1 W1.1 W2.1",
        "rF0.1 F0.2 rF1.1 I0.2 sB0.2 F1.2 I1.2 rF2.1 sB1.2 F2.2 I2.2 sB2.2 W0.2 W1.2 W2.2",
    ],
    # Chunks 0 and 3 on the first stage, 1 and 2 on the second, so 1 hands over to 2 without a transfer.
    ("zb-v", 2, 2, 4): [
        "F0.0 sF0.0 F1.0 sF1.0 F2.0 sF2.0 rF0.2 F0.3 I0.3 sB0.3 rF1.2 W0.3 F1.3 I1.3 sB1.3 W1.3 rB0.1 F3.0 sF3.0 "
        "I0.0 rF2.2 W0.0 F2.3 I2.3 sB2.3 W2.3 rB1.1 I1.0 W1.0 rF3.2 F3.3 I3.3 sB3.3 W3.3 rB2.1 I2.0 W2.0 rB3.1 "
        "I3.0 W3.0",
        "rF0.0 F0.1 rF1.0 F0.2 rF2.0 sF0.2 F1.1 F1.2 rB0.3 sF1.2 I0.2 W0.2 F2.1 rB1.3 I0.1 sB0.1 W0.1 rF3.0 F2.2 "
        "sF2.2 I1.2 W1.2 F3.1 rB2.3 I1.1 sB1.1 W1.1 F3.2 sF3.2 I2.2 W2.2 rB3.3 I2.1 sB2.1 I3.2 I3.1 sB3.1 W2.1 "
        "W3.2 W3.1",
    ],
    # Each stage has the layers of both chunks: its near one, where a microbatch enters, and the far one. F1.1 and B0.0
    # run side by side.
    ("dualpipe", 2, 1, 4): [
        "F0.0 sF0.0 rF0.2 F0.1 F1.0 sF1.0 rF1.2 B0.1 sB0.3 rB0.1 F1.1 B0.0 B1.1 sB1.3 rB1.1 I1.0 W1.0",
        "F0.0 rF0.0 sF0.2 F0.1 F1.0 rF1.0 sF1.2 B0.1 rB0.3 sB0.1 F1.1 B0.0 B1.1 rB1.3 sB1.1 I1.0 W1.0",
    ],
}


def events(trace, body):
    """The passes and transfers of a file, first to last; the model has `body` layers, one for each chunk."""
    found, parts = [], []

    def close():
        kinds = "".join(kind for kind, *_ in parts)
        if parts:
            _, microbatch, chunk = parts[0]
            # The parts of a whole backward take turns, kernel by kernel.
            names = "F" if kinds[0] == "F" else "B" if "WI" in kinds else [*dict.fromkeys(kinds)]
            found.extend(f"{name}{microbatch}.{chunk}" for name in names)
            parts.clear()

    for row in range(trace.num_nodes):
        name = trace.names.of(row)
        if not name.startswith("m"):
            continue
        microbatch = int(name[1 : name.index(".")])
        if trace.types[row] in (COMM_SEND, COMM_RECV):
            close()
            words = name.split()
            way, what = "s" if trace.types[row] == COMM_SEND else "r", "F" if words[1] == "forward" else "B"
            found.append(f"{way}{what}{microbatch}.{words[-1]}")
        elif trace.types[row] == COMP:
            # The embedding is with the first layer, the head with the last one.
            layer = int(name.split(".")[1][1:])
            chunk = min(max(layer - 1, 0), body - 1)
            name = name.removesuffix(" accumulation")
            of_weights = "W" if layer <= body else "I"
            kind = "I" if name.endswith(" inputs") else of_weights if name.endswith(" weights") else "F"
            if parts and ((microbatch, chunk) != parts[0][1:] or (kind == "F") != (parts[0][0] == "F")):
                close()
            parts.append((kind, microbatch, chunk))
    close()
    return found


def written(schedule, stages, chunks, microbatches, folder):
    body = stages * chunks
    job = dsx.Job("gpt3-5b", dsx.trace.ONE_DOMAIN, stages, microbatches, set=[f"model.layers.1.count={body}"])
    plan = f"pp={stages} vpp={chunks} schedule={schedule}"
    dsx.trace.write(job, plan, out=folder, durations=False)
    return [" ".join(events(trace, body)) for trace in traces(open_folder(folder))]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("pipeline", BY_HAND, ids=str)
def test_stages_run_and_send_what_is_worked_out_by_hand(pipeline, tmp_path):
    assert written(*pipeline, tmp_path / "trace") == BY_HAND[pipeline]


@pytest.mark.slow
def test_gradients_of_the_head_are_reduced_before_those_of_the_body(tmp_path):
    """Where ZeRO scatters them with every microbatch, the head's are scattered with its gradients of inputs."""
    job = dsx.Job("gpt3-5b", dsx.trace.ONE_DOMAIN, 4, 8, set=["model.layers.1.count=4"])
    dsx.trace.write(job, "pp=2 dp=2 schedule=zb-h1 zero_stage=2", out=tmp_path / "trace", durations=False)
    *_, last = traces(open_folder(tmp_path / "trace"))
    names = [last.names.of(row) for row in range(last.num_nodes)]
    scattered, put_off = (
        next(row for row, name in enumerate(names) if name.startswith(layer) and name.endswith(what))
        for layer, what in (("m0.L005.", "reduce-scatter gradients 0"), ("m0.L004.", " weights"))
    )
    assert scattered < put_off
