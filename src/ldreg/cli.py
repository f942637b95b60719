"""The `ldreg` command: parse the words, call one function, turn errors into one line."""

import os
import shlex
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, Literal, NoReturn

from ldreg import __version__
from ldreg.extras import advice, missing
from ldreg.options import Command, CommandLine, Option, Settings, did_you_mean, fields_of, help_text, parse
from ldreg.terminal import open_page, progress_bar, show, steps_as_lines
from ldreg.text import printable

_LONGEST = 1000  # characters of an error; names in files from strangers can be of any length
Shell = Literal["bash", "zsh", "fish"]


def inspect_command(
    file: str | None = None,
    *,
    model: str | None = None,
    images: str | None = None,
    texts: str | None = None,
    text_key: str | None = None,
    layers: str | None = None,
    download: bool = False,
    random_weights: bool = False,
    labels: str | None = None,
    compare: str | None = None,
    reference: str | None = None,
    k: int = 64,
    sample: int | None = None,
    estimator: Literal["mom", "mle", "tle"] = "mom",
    convention: Literal["paper", "pseudocode"] = "paper",
    device: str = "auto",
    seed: int = 0,
    key: str | None = None,
    label_key: str | None = None,
    compare_key: str | None = None,
    compare_labels: str | None = None,
    compare_label_key: str | None = None,
    reference_key: str | None = None,
    exclude: str | None = None,
    include: str | None = None,
    skip_nonfinite: bool = False,
    names: str | None = None,
    name_key: str | None = None,
    image_key: str | None = None,
    map: Literal["pca", "tsne", "umap"] = "pca",
    views: str | None = None,
    views_key: str | None = None,
    points: str | None = None,
    neighbors: str | None = None,
    json: str | None = None,
    html: str | None = None,
    command: CommandLine,
) -> None:
    """Measure the local and global dimensionality of embeddings in a file, or of those that a model makes.

    Args:
        file: embeddings, one row per point: .npy, .npz, .pt, .safetensors, .csv, .tsv or .parquet; or many files: a
            folder, a pattern such as 'parts/*.parquet' or a URL of .parquet, .arrow, .feather or .npy
        model: a model to measure in place of FILE: timm:NAME, torchvision:NAME, hf:FOLDER with a checkpoint of
            transformers or sentence-transformers, a run folder of ldreg pretrain, or a checkpoint as for ldreg
            evaluate; --compare then takes a second model
        images: with --model, the folder of images to measure; class folders give labels. With FILE and --html, a folder
            with the images of the points, or a file with one path per row (default: a column of paths in FILE)
        texts: with --model, a file with one text per row, in any format of --labels
        text_key: which array or column of the file of --texts holds the texts
        layers: with --model, measure these layers too: all, or names such as 3,6,output. The rest of the report is
            about the last one
        download: download weights that are not on this machine
        random_weights: build the model of timm or torchvision with random weights
        labels: file with one class label per point, for LID per class
        compare: a second file of embeddings that you trust, to test whether FILE has collapsed compared with it
        reference: a second file in which the neighbors are sought, such as the training set of new embeddings in FILE;
            finds copies of its rows and points far from all of them
        k: number of nearest neighbors that LID is estimated from
        sample: measure this many points, drawn at random; their neighbors are sought among all points. Many files are
            then read in blocks, never as a whole
        estimator: estimator of LID: mom (method of moments), mle (maximum likelihood), tle (tight locality)
        convention: mean over all k distances (paper) or over the first k - 1 (pseudocode)
        device: auto (a GPU if there is one), cpu or cuda; sets larger than its memory are moved there in blocks
        seed: seed of all random draws
        key: which array or list column of FILE, if it holds several
        label_key: which array or column holds the labels, in the file of --labels or else in FILE
        compare_key: which array or list column of the second file
        compare_labels: file with one class label per point of the second file, to compare class by class
        compare_label_key: which array or column holds the labels of the second file, in the file of --compare-labels
            or else in the second file; with --compare-labels the default is that of --label-key
        reference_key: which array or list column of the file of --reference
        exclude: columns of a table that are not dimensions, separated by commas; for FILE, the second file or both
        include: columns of a table that are dimensions although they look like ids or labels, separated by commas; for
            FILE, the second file or both
        skip_nonfinite: leave out rows with NaN, inf or empty cells of columns of numbers, and count them
        names: file with one name or text per point, to name points by; by default a column of words in FILE
        name_key: which array or column holds the names, in the file of --names or else in FILE
        image_key: which array or column holds the paths, in the file of --images or else in FILE
        map: how --html places the points: pca (principal axes), tsne (at most 10,000 points) or umap (20,000; needs
            ldreg[umap])
        views: file with another view of each row of FILE, such as a second augmentation of the same image or the text
            of a pair; gives alignment and LiDAR
        views_key: which array or list column of the file of --views
        points: write a table with a row per point (LID, error, finding, duplicates) to this .parquet, .csv or .npy
        neighbors: write the graph of nearest neighbors to this .npz, as a sparse matrix of distances
        json: write every number, with LID per point, to this file
        html: write a self-contained page with figures to this file
        command: as it was typed
    """
    of_page = {
        "images": None if model is not None else images,
        "image-key": image_key,
        "map": None if map == "pca" else map,
    }
    if html is None:
        _reject(of_page, "with --html")
    if model is not None:
        embedded: dict[str, Any] = {
            "key": key,
            "compare-key": compare_key,
            "compare-labels": compare_labels,
            "reference": reference,
        }
        embedded |= {"compare-label-key": compare_label_key, "reference-key": reference_key, "exclude": exclude}
        embedded |= {"include": include, "names": names, "name-key": name_key, "image-key": image_key}
        embedded |= {"views": views, "views-key": views_key, "skip-nonfinite": skip_nonfinite or None}
        _reject(embedded, "to embeddings in a FILE, not with --model")
        if file is not None:
            raise ValueError(f"FILE: expected none with --model, got {file!r}")
        settings = {"k": k, "estimator": estimator, "convention": convention, "sample": sample, "device": device}
        weights = {"download": download, "random_weights": random_weights}
        _inspect_model(
            model, images, (texts, text_key, labels, label_key), layers=layers, compare=compare,
            outputs={"points": points, "neighbors": neighbors, "json": json, "html": html}, command=command,
            **weights, **settings, seed=seed, map=map,
        )  # fmt: skip
        return
    of_model: dict[str, Any] = {"texts": texts, "text-key": text_key, "layers": layers}
    of_model |= {"download": download or None, "random-weights": random_weights or None}
    _reject(of_model, "with --model")
    if file is None:
        raise ValueError("expected FILE or --model, got neither")
    from ldreg.distributed import agreed
    from ldreg.inspection.inputs import EmbeddingFile, InspectedFiles, check_settings
    from ldreg.inspection.measure import inspect
    from ldreg.inspection.points import neighbor_graph, points_table, write_graph, write_points

    first = EmbeddingFile(file, labels, key, label_key, names, name_key, images, image_key)
    second = None if compare is None else EmbeddingFile(compare, compare_labels, compare_key, compare_label_key)
    relation: Literal["compare", "reference"] = "compare"
    if reference is not None and compare is None:
        second, relation = EmbeddingFile(reference, key=reference_key), "reference"
    other_views = None if views is None else EmbeddingFile(views, key=views_key)
    files = InspectedFiles(first, second, exclude, include, relation, skip_nonfinite, other_views)

    def read(main_process: bool) -> tuple[Any, Any, Any, Any]:
        check_settings(k, estimator=estimator, convention=convention, sample=sample, device=device, seed=seed)
        if main_process:
            files.check_outputs(json=json, html=html, points=points, neighbors=neighbors)
        if neighbors is not None and sample is not None:
            raise ValueError(
                f"--neighbors: expected to be left out with --sample, as it names all points, got {neighbors!r}"
            )
        if reference is not None and compare is not None:
            raise ValueError("--reference: expected it or --compare, got both")
        if reference_key is not None and reference is None:
            raise ValueError(f"--reference-key: expected --reference with it, got {reference_key!r}")
        if views_key is not None and views is None:
            raise ValueError(f"--views-key: expected --views with it, got {views_key!r}")
        if compare_key is not None and compare is None:
            raise ValueError(f"--compare-key: expected --compare with it, got {compare_key!r}")
        for option, value in (("labels", compare_labels), ("label-key", compare_label_key)):
            if value is not None and (compare is None or first.label_file is None):
                needed = "--compare and labels of the first file"
                raise ValueError(f"--compare-{option}: expected {needed} with it, got {value!r}")
        return files.read()

    with _all_processes("ldreg inspect") as main_process, progress_bar(shown=main_process) as progress:
        progress("reading", 0.0)
        x, classes, other, other_classes = agreed(lambda: read(main_process))
        named = agreed(lambda: files.names(len(x)))
        shown = agreed(
            lambda: files.images(len(x), named, (json, html, points, neighbors)) if main_process and html else None
        )
        seen = agreed(files.read_views)
        with files.naming_errors():
            report = inspect(
                x, classes, k, names=named, estimator=estimator, convention=convention,
                compare=other if reference is None else None, compare_labels=other_classes,
                reference=None if reference is None else other, views=seen, sample=sample, device=device, seed=seed,
                share=True, keep_neighbors=neighbors is not None or html is not None, skip_nonfinite=skip_nonfinite,
                map=map, resume=files.state(sample, json, html, points), progress=progress,
            )  # fmt: skip
        report = files.with_titles(replace(report, command=command))
        outputs: dict[str | None, Callable[[str], None]] = {
            json: report.to_json,
            html: partial(report.to_html, images=None if shown is None else shown.paths),
            points: lambda path: write_points(
                points_table(report, files.columns(), named_by=files.name_key(len(x))), path
            ),
            neighbors: lambda path: write_graph(neighbor_graph(report), path),
        }
        agreed(lambda: _write(outputs) if main_process else None)
    if main_process:
        from ldreg.report.words import inspection_text

        show(partial(inspection_text, report))
        pictured = "" if shown is None else shown.said
        hints = (files.scale_hint(x), files.name_hint(len(x), shown), files.label_hint(len(x)), pictured)
        for hint in filter(None, hints):
            print(hint, file=sys.stderr)


def _reject(given: dict[str, Any], applies: str) -> None:
    """Raise ValueError for the first option that has a value: it applies only elsewhere."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"--{name}: it applies only {applies}" + ("" if value is True else f", got {value!r}"))


def _inspect_model(
    model: str,
    images: str | None,
    of_texts: tuple[str | None, str | None, str | None, str | None],
    *,
    compare: str | None,
    outputs: dict[str, str | None],
    command: str,
    **settings: Any,
) -> None:
    """`ldreg inspect --model`; `of_texts` are --texts, --text-key, --labels and --label-key."""
    from ldreg.distributed import launched
    from ldreg.inspection.inputs import check_settings, check_targets
    from ldreg.inspection.points import neighbor_graph, points_table, write_graph, write_points

    texts, *further = of_texts
    if (images is None) == (texts is None):
        raise ValueError(f"--model: expected --images or --texts with it, got {'both' if images else 'neither'}")
    if images is not None:
        words = dict(zip(("text-key", "labels", "label-key"), further, strict=True))
        _reject(words, "to --texts; with --images, class folders are the labels")
    if settings["download"] and settings["random_weights"]:
        raise ValueError("--download: it does not apply with --random-weights")
    if launched():
        raise ValueError("--model: expected one process, got several; start it without torchrun")
    check_settings(**{name: settings[name] for name in signature(check_settings).parameters})
    inputs = [images or texts, further[1], *(path for path in (model, compare) if path and Path(path).exists())]
    check_targets(inputs, **outputs)
    if outputs["neighbors"] is not None and settings["sample"] is not None:
        raise ValueError(f"--neighbors: expected to be left out with --sample, got {outputs['neighbors']!r}")
    from ldreg.evaluate.models import inspect_model, read_images, read_texts

    with progress_bar() as progress:
        progress("reading", 0.0)
        if texts is None:
            content = read_images(str(images))
        else:
            key, labels, label_key = further
            content = read_texts(texts, key=key, labels=labels, label_key=label_key)
        report = inspect_model(model, content, compare=compare, progress=progress, **settings)
    report = replace(report, command=command)
    _write(
        {
            outputs["json"]: report.to_json,
            outputs["html"]: lambda path: report.to_html(path, images=content.files_of(report)),
            outputs["points"]: lambda path: write_points(points_table(report), path),
            outputs["neighbors"]: lambda path: write_graph(neighbor_graph(report), path),
        }
    )
    from ldreg.report.words import inspection_text

    show(partial(inspection_text, report))


@contextmanager
def _all_processes(program: str) -> Iterator[bool]:
    """Join the processes that torchrun started, if it did; yields whether this one reads outputs and prints.

    An error has to reach all processes. The main process prints it before any of them ends, because torchrun stops the
    others when one ends. If a process is lost, each of the others says so.
    """
    from ldreg.distributed import LostProcessError, agreed, joined, launched, rank

    if not launched():
        yield True
        return
    with joined():
        try:
            yield rank() == 0
        except LostProcessError:
            raise
        except Exception as error:
            expected = isinstance(error, ValueError | OSError | MemoryError) or _is_out_of_memory(error)
            if expected and rank() == 0:
                fail(program, error, name="inspect")
            with suppress(LostProcessError):
                agreed(lambda: None)
            if not expected:
                raise
            raise SystemExit(2) from error


def _write(outputs: dict[str | None, Callable[[str], None]]) -> None:
    for path, write in outputs.items():
        if path is not None:
            write(path)
            print(f"wrote {path}", file=sys.stderr)


def demo_command(*, out: str = "ldreg-demo", seed: int = 0, epochs: int | None = None) -> None:
    """Train SimCLR on scikit-learn's digits without and with LDReg, and compare the two in a report.

    Args:
        out: folder for the report, its numbers, the runs and pictures
        seed: seed of all random draws
        epochs: epochs of each of the two runs; 80 by default, 60 without ldreg[train]
    """
    import torch

    from ldreg.demo import demo
    from ldreg.report.words import comparison_text

    if missing("train") is not None:
        print('a small SimCLR in plain PyTorch; pip install "ldreg[train]" trains by the recipes', file=sys.stderr)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # everything here is small, and more threads would mostly wait for one another
    try:
        result = demo(Path(out), epochs=epochs, seed=seed, progress=steps_as_lines())
    finally:
        torch.set_num_threads(threads)
    show(partial(comparison_text, result.runs))
    for cloud in result.reached:
        print(f"{cloud.caption}: reached LID {cloud.mean_lid:.2f}, global dimension {cloud.global_dimension:.2f}")
    print(f"\nThe report is {result.report}")
    open_page(result.report)


def report_command(
    run: list[str],
    *,
    out: str = "comparison.html",
    names: str | None = None,
    title: str | None = None,
    device: str = "auto",
    thumbnails: int = 24,
    points: int | None = None,
    k: int | None = None,
    json: str | None = None,
    data: Settings,
) -> None:
    """Compare runs on one self-contained page: settings, results, curves, histograms, spectra, maps, collapsed images.

    Options of data such as --data.path and --data.cache replace the runs' own, for all of them.

    Args:
        run: run folders, JSON files that --json wrote, or checkpoints with --data.name
        out: the page
        names: names of the runs, separated by commas; by default those of the folders
        title: heading of the page
        device: auto, cpu or cuda
        thumbnails: number of most collapsed images shown of each run
        points: measure LID of at most this many images, among all; by default of all
        k: number of neighbors that LID is estimated from; by default the run's monitor.k
        json: folder for the record of each run, to compare it elsewhere
        data: options of data
    """
    for key, _ in data:
        if not key.startswith("data."):
            flags = [f"--{name}" for name in signature(report_command).parameters]
            raise ValueError(f"unknown option --{key}{did_you_mean(key, flags)}")
    for path in run:  # before the imports, which take seconds
        if not Path(path).exists():
            raise FileNotFoundError(f"{path}: expected a run folder or the JSON record of a run, got nothing there")
    if json is not None and Path(json).exists() and not Path(json).is_dir():
        raise NotADirectoryError(f"--json: expected a folder, got the file {json!r}")
    from ldreg.evaluate.report import make_records, write_report

    records = make_records(
        run,
        names=None if names is None else [name.strip() for name in names.split(",")],
        device=device,
        thumbnails=thumbnails,
        points=points,
        k=k,
        data=data,
        out=out,
    )
    write_report(records, Path(out), title=title, json=None if json is None else Path(json), inputs=run)
    from ldreg.report.words import comparison_text

    show(partial(comparison_text, records))


def _data_options(given: Settings | None) -> list[Option]:
    from ldreg.data import DataConfig

    return fields_of(DataConfig, "data")


def _evaluate_command(kind: str) -> Callable[..., None]:
    def evaluate_command(source: str, *, options: Settings, command: CommandLine) -> None:
        """Evaluate an encoder.

        Args:
            source: run folder of ldreg pretrain, encoder.safetensors, or a state dict (.pt, .pth, .safetensors) in the
                layout of timm, torchvision or the paper's authors
            options: of this kind of evaluation
            command: as it was typed
        """
        if not Path(source).exists():  # before the imports, which take seconds
            raise FileNotFoundError(f"{source}: expected a run folder or a checkpoint, got no such file")
        from ldreg.evaluate.command import evaluate

        evaluate(kind, source, options, command=command)

    return evaluate_command


def _kind_options(kind: str) -> Callable[[Settings | None], Sequence[Option]]:
    def options(given: Settings | None) -> Sequence[Option]:
        from ldreg.evaluate.command import kind_options

        return kind_options(kind)

    return options


def export_command(run: str, *, out: str = "encoder.onnx", size: int | None = None, normalize: bool = False) -> None:
    """Write the encoder of a run to an ONNX file, checked with onnxruntime.

    Args:
        run: run folder, or a checkpoint that ldreg evaluate takes
        out: file to write, which ends in .onnx
        size: side of the images, if the checkpoint does not say
        normalize: the file takes images from 0 to 1 and normalizes them itself
    """
    from ldreg.integrations.onnx import export_encoder

    made = export_encoder(run, out, size=size, normalize=normalize)
    values = "from 0 to 1" if normalize else "normalized as in card.json"
    print(f"images           float32 (batch, {made.channels}, {made.size}, {made.size}), {values}")
    print(f"representations  float32 (batch, {made.dimension})")
    print(f"ONNX opset {made.opset}; onnxruntime differs from PyTorch by {made.difference:.1e} of the largest value")
    print(f"The file is {made.path}")


def bench_command(
    what: Literal["lid", "regularizer", "views", "step", "all"],
    *,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    sizes: str = "full",
    contenders: str | None = None,
    k: int = 64,
    repeats: int = 3,
    threads: int | None = None,
    seed: int = 0,
    json: str | None = None,
    out: str | None = None,
    command: CommandLine,
) -> None:
    """Measure the speed and memory of ldreg beside other ways to do the same.

    Args:
        what: lid (of a whole set), regularizer (forward and backward), views (of images), step (of training) or all
        device: auto, cpu or cuda, for ldreg and all others who can; auto is CUDA where there is a GPU
        sizes: full, quick, or separated by commas POINTSxDIMENSIONS, as 2000x512,10kx128; for views
            [files:]IMAGESxPIXELS, for step IMAGESxPIXELS[:ENCODER]
        contenders: names from the table, separated by commas; all by default
        k: nearest neighbors
        repeats: measurements, of which the median is shown; one where it takes over 10 seconds
        threads: threads or worker processes of each contender; all cores by default
        seed: seed of the points and images
        json: write every number to this file
        out: write RESULTS.md, plots and numbers into this folder
        command: as it was typed
    """
    from ldreg.bench import BENCHMARKS
    from ldreg.bench.runner import bench

    names = [] if contenders is None else [name.strip() for name in contenders.split(",")]
    options: dict[str, Any] = {"k": k, "repeats": repeats, "threads": threads, "seed": seed, "device": device}
    chosen = list(BENCHMARKS) if what == "all" else [what]
    bench(chosen, sizes=sizes, contenders=names, command=command, json=json, out=out, **options)


def completion_command(shell: Shell) -> None:
    """Print the script that makes a shell complete the commands and options of ldreg.

    Making it takes some seconds; it is kept for the next time.

    Args:
        shell: bash, zsh or fish
    """
    from ldreg.options import completion

    cache = Path(os.environ.get("LDREG_CACHE") or Path.home() / ".cache" / "ldreg")
    path = cache / f"completion-{__version__}.{shell}"
    if path.is_file():
        script = path.read_text(encoding="utf-8")
    else:
        from ldreg.data.config import DATASETS
        from ldreg.train.recipes import recipe_names

        script = completion(shell, COMMANDS, __version__, {"recipe": recipe_names(), "data.name": DATASETS})
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(script, encoding="utf-8")
        except OSError as error:
            print(f"ldreg completion: warning: not kept: {error}", file=sys.stderr)
    print(script, end="")


_KINDS = {
    "linear": (
        "Accuracy of a linear classifier on frozen representations, after the last epoch.",
        (
            "ldreg evaluate linear runs/first",
            "ldreg evaluate linear runs/first --protocol imagenet --devices 4",
            "ldreg evaluate linear resnet50.pth --data.name cifar10 --data.path cifar10",
        ),
    ),
    "knn": (
        "Accuracy of the weighted vote of nearest neighbors.",
        ("ldreg evaluate knn runs/first", "ldreg evaluate knn runs/first --k 20"),
    ),
    "finetune": (
        "Accuracy after training the whole encoder with labels, after the last epoch.",
        ("ldreg evaluate finetune runs/first --fraction 0.1",),
    ),
    "dimension": (
        "LID, effective rank and all else that ldreg inspect measures.",
        ("ldreg evaluate dimension runs/first", "ldreg evaluate dimension runs/first --representations first.npy"),
    ),
    "transfer": (
        "Linear accuracy on each of a list of datasets, after the last epoch.",
        (
            "ldreg evaluate transfer runs/first --datasets cifar10=/data/cifar10,dtd=dtd",
            "ldreg evaluate transfer runs/first --datasets digits --protocol fast",
        ),
    ),
    "detection": (
        "Average precision of a Mask R-CNN (C4) fine-tuned from the encoder.",
        ("ldreg evaluate detection runs/first --path /data/coco --schedule 2x",),
    ),
}

COMMANDS = {
    "inspect": Command(
        inspect_command,
        "Measure the local and global dimensionality of embeddings in a file, or of those that a model makes.",
        (
            "ldreg inspect embeddings.npy",
            "ldreg inspect features.npz --key train --labels labels.csv --html report.html",
            "ldreg inspect table.csv --label-key species",
            "ldreg inspect huge.safetensors --sample 20000 --compare before.safetensors",
            "ldreg inspect 'parts/*.parquet' --key vector --sample 10000 --json parts.json",
            "ldreg inspect new.npy --labels y.csv --compare old.npy --compare-labels y.csv",
            "ldreg inspect test.npy --reference train.npy --points points.csv",
            "ldreg inspect pairs.npz --key image --views pairs.npz --views-key text",
            "ldreg inspect --model timm:resnet18 --images photos --download --layers all",
            "ldreg inspect --model hf:minilm --texts reviews.csv --text-key text",
            "torchrun --nproc-per-node 4 -m ldreg inspect huge.npy",
        ),
        {
            **dict.fromkeys(
                (
                    *("labels", "compare", "compare_labels", "reference", "names", "texts", "views"),
                    *("points", "neighbors", "json", "html"),
                ),
                "FILE",
            ),
            "model": "MODEL",
            "images": "FOLDER|FILE",
            "layers": "all|NAME,...",
            "text_key": "NAME",
            **dict.fromkeys(("key", "label_key", "name_key", "image_key", "compare_key", "compare_label_key"), "NAME"),
            **dict.fromkeys(("reference_key", "views_key", "device"), "NAME"),
            **dict.fromkeys(("exclude", "include"), "NAME,..."),
        },
        less_memory="--sample measures fewer points, --device cpu needs no GPU memory",
        second_word="; a second file is for --compare, and many files are a quoted pattern ('parts/*.parquet')",
    ),
    "demo": Command(
        demo_command,
        "Train SimCLR on scikit-learn's digits without and with LDReg, and compare the two in a report.",
        ("ldreg demo", "ldreg demo --out first-look"),
        {"out": "FOLDER"},
    ),
    "pretrain": Command(
        "ldreg.train.command:pretrain_command",
        "Train an encoder by self-supervision, with or without LDReg.",
        (
            "ldreg pretrain",
            "ldreg pretrain --method byol --regularizer ldreg --ldreg.beta 0.005",
            "ldreg pretrain --recipe cifar10/simclr_ldreg --data.path cifar10.tar.xz",
            "ldreg pretrain --recipe imagenet/byol_ldreg --data.path /data/imagenet",
            "ldreg pretrain --resume runs/byol",
        ),
        {"recipe": "NAME", "out": "FOLDER", "resume": "FOLDER"},
        less_memory="a smaller --batch_size, --trainer.accumulate or --trainer.precision bf16 needs less",
        settings="ldreg.train.command:setting_options",
    ),
    **{
        f"evaluate {kind}": Command(
            _evaluate_command(kind),
            summary,
            examples,
            {"out": "FOLDER", "json": "FILE", "cache": "FOLDER", "html": "FILE", "representations": "FILE"},
            less_memory="a smaller --batch_size or --precision bf16 needs less, --device cpu needs no GPU memory",
            settings=_kind_options(kind),
        )
        for kind, (summary, examples) in _KINDS.items()
    },
    "report": Command(
        report_command,
        "Compare runs on one self-contained page.",
        (
            "ldreg report runs/plain runs/ldreg",
            "ldreg report runs/* --names SimCLR,SimCLR+LDReg --title CIFAR-10 --out c.html",
            "ldreg report runs/first --json records    # then, where the other run is:",
            "ldreg report records/first.json runs/second",
            "ldreg report runs/first --data.path /elsewhere/cifar10",
            "ldreg report resnet50.pth --data.name cifar10 --data.path cifar10.tar.xz",
        ),
        {"out": "FILE", "names": "A,B,...", "json": "FOLDER", "device": "NAME"},
        settings=_data_options,
    ),
    "reproduce": Command(
        "ldreg.reproduce.reproduction:reproduce",
        "Run the paper's tables and figures, and print measured values beside the paper's.",
        (
            "ldreg reproduce all --scale digits",
            "ldreg reproduce table1 --scale cifar10 --data.path cifar10.tar.xz --plan",
            "ldreg reproduce table1,minlid --scale cifar10 --data.path cifar10 --seeds 3",
            "ldreg reproduce search --scale cifar10 --data.path cifar10 --methods byol",
            "ldreg reproduce all --results results/cifar10 --scale cifar10 --write x.md",
        ),
        {
            **dict.fromkeys(("out", "results", "coco"), "FOLDER"),
            "write": "FILE",
            "methods": "NAME,...",
            "datasets": "NAME=PATH,...",
        },
        less_memory="--jobs 1 needs less",
        second_word="; several names have commas between them",
        details="ldreg.reproduce.reproduction:study_list",
    ),
    "export": Command(
        export_command,
        "Write the encoder of a run to an ONNX file, checked with onnxruntime.",
        ("ldreg export runs/first", "ldreg export runs/first --out encoder.onnx --normalize"),
        {"out": "FILE"},
    ),
    "bench": Command(
        bench_command,
        "Measure the speed and memory of ldreg beside other ways to do the same.",
        (
            "ldreg bench lid",
            "ldreg bench all --out benchmarks",
            "ldreg bench regularizer --device cuda",
            "ldreg bench views --sizes quick",
            "ldreg bench lid --sizes 5kx256,50kx256 --contenders ldreg,faiss",
        ),
        {"sizes": "SIZES", "contenders": "NAME,...", "json": "FILE", "out": "FOLDER"},
    ),
    "completion": Command(
        completion_command,
        "Print the script that makes a shell complete the commands and options of ldreg.",
        (
            "# in ~/.bashrc",
            'eval "$(ldreg completion bash)"',
            "# in ~/.zshrc, after compinit",
            'eval "$(ldreg completion zsh)"',
            "# in ~/.config/fish/config.fish",
            "ldreg completion fish | source",
        ),
    ),
}
_EXAMPLES = """examples:
  ldreg inspect embeddings.npy --labels labels.csv --html report.html
  ldreg demo
  ldreg pretrain --method byol --regularizer ldreg --out runs/first
  ldreg evaluate linear runs/first
  ldreg report runs/first runs/second
  ldreg reproduce table1 --scale digits
  ldreg export runs/first --out encoder.onnx
  ldreg bench lid --sizes quick
  eval "$(ldreg completion bash)"

ldreg COMMAND --help says more. Measuring needs nothing else. Commands that need
further packages say so: pip install "ldreg[train]".
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `ldreg` with these arguments (those of the process by default) and return its exit status.

    0: done; 1: training went wrong; 2: wrong arguments or input; 75: out of time; 130 or 143: interrupted. An error is
    one line on stderr; with LDREG_DEBUG=1 in the environment the traceback is printed too.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    name = next((name for name in (" ".join(words[:2]), words[0] if words else "") if name in COMMANDS), "")
    program = f"ldreg {words[0]}" if name or (words and _kinds(words[0])) else "ldreg"
    try:
        if name:
            _run(name, words[len(name.split()) :], command=CommandLine(shlex.join(["ldreg", *words])))
        else:
            return _without_command(words)
        sys.stdout.flush()
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else 2
    except BrokenPipeError:
        # The reader of the output has seen enough; the flush at exit must not fail on it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt as stop:
        print(f"{program}: {_on_one_line(str(stop)) or 'interrupted'}", file=sys.stderr)
        return int(getattr(stop, "status", 130))
    except (ValueError, OSError, MemoryError) as error:
        return fail(program, error, name=name)
    except ModuleNotFoundError as error:
        message = advice((error.name or "").partition(".")[0])
        if message is None:
            raise
        return fail(program, ValueError(message))
    except ArithmeticError as error:  # the command was right and its run went wrong
        return fail(program, error, status=1)
    except RuntimeError as error:
        if not _is_out_of_memory(error):
            raise
        return fail(program, error, name=name)
    return 0


def _run(name: str, words: list[str], *, command: CommandLine) -> None:
    chosen = COMMANDS[name]
    if "-h" in words or "--help" in words:
        print(help_text(name, chosen, ["--help" if word == "-h" else word for word in words]))
        return
    chosen.function(**parse(chosen, words, command_line=command))


def _without_command(words: Sequence[str]) -> int:
    """Print the help or the version, or say which command was meant."""
    kinds = _kinds(words[0]) if words else []
    group = words[0] if kinds else ""
    if not words or (words[-1] in ("-h", "--help") and len(words) == (2 if group else 1)):
        print(_overview(group), file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words[0] == "--version":
        print(f"ldreg {__version__}")
        return 0
    if not group:
        names = [*COMMANDS, *(name.partition(" ")[0] for name in COMMANDS), "--help", "--version"]
        proposed = did_you_mean(words[0], names) or "; ldreg --help lists all"
        raise ValueError(f"unknown command {words[0]!r}{proposed}")
    if len(words) == 1:
        raise ValueError(f"kind: expected one of {', '.join(kinds)}, got nothing")
    proposed = did_you_mean(words[1], kinds)
    if Path(words[1]).exists():
        proposed = f"; the kind comes first: ldreg {group} KIND {words[1]}"
    raise ValueError(f"kind: expected one of {', '.join(kinds)}, got {words[1]!r}{proposed}")


def _kinds(group: str) -> list[str]:
    """The kinds of a command such as evaluate; none of others."""
    return [name.partition(" ")[2] for name in COMMANDS if name.startswith(f"{group} ")]


def _overview(group: str = "") -> str:
    """The help of `ldreg`, or of those commands that begin with a word."""
    commands = "\n".join(
        textwrap.fill(command.summary, 80, initial_indent=f"  {name:<20}  ", subsequent_indent=" " * 24)
        for name, command in COMMANDS.items()
        if name.startswith(group)
    )
    if group:
        more = f"ldreg {group} KIND --help lists the options of a kind."
        return f"usage: ldreg {group} KIND SOURCE ...\n\nkinds:\n{commands}\n\n{more}"
    about = "Measure and prevent local dimensional collapse of representations."
    return f"usage: ldreg COMMAND ...\n\n{about}\n\ncommands:\n{commands}\n\n{_EXAMPLES}".rstrip()


def fail(program: str, error: BaseException, *, status: int = 2, name: str = "") -> int:
    """Print an error in one line, and with LDREG_DEBUG=1 the traceback; return the exit status."""
    if os.environ.get("LDREG_DEBUG") == "1":
        traceback.print_exception(error)
    message = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        message = f"{error.filename}: {error.strerror}"
    if _is_out_of_memory(error) and not isinstance(error, ArithmeticError):  # which is about one run of several
        command = COMMANDS.get(name)
        message = f"out of memory; {command.less_memory if command else 'a smaller problem may fit'}"
    print(f"{program}: error: {_on_one_line(message) or type(error).__name__}", file=sys.stderr)
    return status


def _on_one_line(message: str) -> str:
    """A message without line breaks and control characters, the middle left out if it is too long."""
    line = printable(" ".join(message.split()))
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} … {line[-(_LONGEST // 2) :]}"


def _is_out_of_memory(error: BaseException) -> bool:
    message = str(error)
    return isinstance(error, MemoryError) or "out of memory" in message or "can't allocate memory" in message


def run() -> NoReturn:
    """Run `ldreg` with the arguments of the process, and end it."""
    for name in ("stdout", "stderr"):  # may have been closed by the caller
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open until the process ends
    status = main()
    groups = sys.modules.get("torch.distributed")  # not imported if nothing needed it
    if groups is not None and groups.is_available() and groups.is_initialized():
        from ldreg.distributed import leave

        leave(status)
    sys.exit(status)
