"""Everything ``make bench`` prints."""

from benchmarks import (
    bench_clustering,
    bench_discovery,
    bench_head,
    bench_load,
    bench_parts_step,
    bench_photographs,
    bench_split_merge,
    bench_start,
    bench_step,
    bench_views,
)


def main() -> None:
    """Run every benchmark with the sizes that ``docs/lab/results.md`` quotes."""
    for benchmark, argv in (
        (bench_start, []),
        (bench_load, []),
        (bench_step, []),
        (bench_parts_step, []),
        (bench_head, []),
        (bench_clustering, ["--size", "cifar100"]),
        (bench_split_merge, []),
        (bench_views, []),
        (bench_discovery, []),
        (bench_photographs, []),
    ):
        print(f"\n== {benchmark.__name__.removeprefix('benchmarks.')} ==", flush=True)
        benchmark.main(argv)


if __name__ == "__main__":
    main()
