"""Shares of NICs, and the scripts that set them; what programs make of the scripts is in `test_ovs_programs.py`."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from dsx.errors import InputError, StoreError
from dsx.placement.open_vswitch import bits_per_s, nic_shares, overbooked, ovs_files, rate_text, write_ovs

GBIT = 1e9 / 8
EXPECTED = Path(__file__).parent / "expected_ovs"
EXAMPLE = np.array([[0, 12, 3.2], [2.4, 0, 5.6], [10, 10, 0]]) * GBIT  # of 2 NICs of 10 Gbit/s


@pytest.mark.parametrize("seed", range(20))
def test_shares_add_up_and_no_nic_sends_too_much(seed):
    rng = np.random.default_rng(seed)
    servers, nics = int(rng.integers(2, 7)), int(rng.integers(1, 5))
    bandwidth = rng.exponential(1.0, (servers, servers)) * (rng.random((servers, servers)) < 0.8)
    np.fill_diagonal(bandwidth, 0.0)
    most = bandwidth.sum(axis=1, keepdims=True)
    bandwidth *= np.where(most > 0, nics * GBIT / np.where(most > 0, most, 1.0), 0.0)  # all NICs are full
    shares = nic_shares(bandwidth, nics, GBIT)
    assert shares.sum(axis=2) == pytest.approx(bandwidth, rel=1e-6, abs=1.0)
    assert (shares.sum(axis=1) <= GBIT * (1 + 1e-9)).all() and (shares >= 0).all()
    for source in range(servers):
        parts, pairs = np.count_nonzero(shares[source]), np.count_nonzero(bandwidth[source])
        assert parts <= pairs + nics, "few splits"


def test_pairs_are_split_only_if_they_must_be():
    shares = nic_shares(EXAMPLE, 2, 10 * GBIT) / GBIT
    assert shares[0].tolist() == [[0, 0], [10, 2], [0, pytest.approx(3.2)]]
    assert np.count_nonzero(shares[2]) == 2
    assert overbooked(shares * GBIT, 10 * GBIT) == [(1, 1, pytest.approx(12 * GBIT))]
    # Senders to one server use different nics of it.
    bandwidth = np.zeros((4, 4))
    bandwidth[1:, 0] = 6 * GBIT
    shares = nic_shares(bandwidth, 3, 10 * GBIT)
    assert overbooked(shares, 10 * GBIT) == []


@pytest.mark.parametrize(
    ("bandwidth", "nics", "nic_bandwidth", "said"),
    [
        ([[0, 1]], 1, 1.0, "bandwidth has the shape (1, 2): a row and a column for each server"),
        ([[0, -1], [0, 0]], 1, 1.0, "bandwidth[0, 1]: -1.0 bytes/s is no bandwidth"),
        ([[0, 1], [np.nan, 0]], 1, 1.0, "bandwidth[1, 0]: nan bytes/s is no bandwidth"),
        ([[0, 3e9], [0, 0]], 2, 1e9, "bandwidth: server 0 sends 3.00 GB/s, but 2 NICs have 2.00 GB/s"),
        ([[0, 1], [0, 0]], 0, 1.0, "nics: 0 are too few"),
        ([[0, 1], [0, 0]], 1, 0.0, "nic_bandwidth: 0.0 bytes/s is no bandwidth above 0"),
        (
            np.zeros((255, 255)),
            1,
            1.0,
            "255 servers of 1 NICs: the addresses 10.0.NIC.SERVER have room for 254 of each",
        ),
    ],
)
def test_what_nics_cannot_send_is_refused(bandwidth, nics, nic_bandwidth, said):
    with pytest.raises(InputError, match=re.escape(said)):
        ovs_files(np.array(bandwidth), nics, nic_bandwidth)


@pytest.mark.parametrize("name", sorted(path.name for path in EXPECTED.iterdir()))
def test_files_are_as_expected(name):
    assert ovs_files(EXAMPLE, 2, 10 * GBIT)[name] == (EXPECTED / name).read_text()


def test_rates_and_bridges_of_scripts():
    assert bits_per_s(1e9 / 3) == 2_666_666_666
    assert bits_per_s(0.1 * 3 * GBIT) == 300_000_000  # not one less by rounding
    assert rate_text(1e9 / 3) == "2.667 Gbit/s" and rate_text(2.5e3 / 8) == "2.5 kbit/s" and rate_text(0.0) == "0 bit/s"
    texts = ovs_files(np.array([[0, 1, 2], [3, 0, 1], [1, 1, 0]]) * GBIT / 7, 2, GBIT)
    rates = re.findall(r"rate=(\S+)", "".join(texts.values()))
    assert len(rates) > 20 and all(rate.isdigit() for rate in rates)
    # A server that sends nothing has its bridges.
    text = ovs_files(np.array([[0.0, GBIT], [0.0, 0.0]]), 1, GBIT)["server-1-setup.sh"]
    assert "#   nothing\n" in text and "set_queue" not in text and "queues:0=@q0 \\\n" in text
    # Rates that some releases cannot hold are told.
    pair = np.array([[0.0, 1.0], [0.0, 0.0]]) * GBIT
    assert "above 34 Gbit/s" in ovs_files(pair, 1, 100 * GBIT)["README.md"]
    assert "above 34 Gbit/s" not in ovs_files(pair, 1, 25 * GBIT)["README.md"]


def test_scripts_are_of_the_posix_shell(tmp_path):
    for path in write_ovs(tmp_path, EXAMPLE, 2, 10 * GBIT):
        if path.suffix == ".sh":
            subprocess.run(["sh", "-n", path], check=True)


def test_a_folder_has_one_allocation(tmp_path):
    folder = tmp_path / "new"
    written = write_ovs(folder, EXAMPLE, 2, 10 * GBIT)
    assert sorted(path.name for path in written) == sorted(path.name for path in folder.iterdir())
    (folder / "hosts.env").write_text("DATAPATH=netdev\n")
    write_ovs(folder, EXAMPLE, 2, 10 * GBIT)
    assert (folder / "hosts.env").read_text() == "DATAPATH=netdev\n", "the user has filled it in"
    with pytest.raises(StoreError, match=r"has server-0-setup\.sh of another allocation: give another folder"):
        write_ovs(folder, EXAMPLE / 2, 2, 10 * GBIT)
    (folder / "server-3-setup.sh").write_text("")
    with pytest.raises(StoreError, match=r"has server-3-setup\.sh of another allocation"):
        write_ovs(folder, EXAMPLE, 2, 10 * GBIT)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is a file: name a folder"):
        write_ovs(tmp_path / "file", EXAMPLE, 2, 10 * GBIT)


@pytest.mark.parametrize("plant", [lambda path: path.write_text("reboot\n"), lambda path: path.symlink_to("elsewhere")])
def test_hosts_that_somebody_else_planted_are_refused(tmp_path, plant):
    plant(tmp_path / "hosts.env")
    with pytest.raises(StoreError, match=r"has a hosts\.env of something else: give another folder"):
        write_ovs(tmp_path, EXAMPLE, 2, 10 * GBIT)
    assert [path.name for path in tmp_path.iterdir()] == ["hosts.env"]
