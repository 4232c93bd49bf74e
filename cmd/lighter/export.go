package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/format/trace"
	"lighter/store/attachment"
	"lighter/store/conversion"
	"lighter/store/registry"
	"lighter/wire"
)

func exportCommand() *cobra.Command {
	o := export{}
	cmd := &cobra.Command{
		Use:   "export [flags] --format FORMAT --to DESTINATION IMAGE",
		Short: "Write an image in a format that other snapshotters start lazily",
		Long: `Write an image in a lazy format: for nodes whose snapshotter starts such images without a
hub (the snapshotters of stargz and SOCI, AWS Fargate, and Lighter with "direct"). No hub is
needed. The new image has the same files and the same config as the old one, and another
digest.

FORMAT is one of
  estargz        eStargz: gzip, which every container runtime reads. Its layers have files
                 of the format in their root
  zstdchunked    zstd:chunked as stargz-snapshotter writes it
  soci           the old layers, and a SOCI index (version 2), which the manifest names. Copy
                 such an image with all its platforms, or the index is lost

IMAGE is one of
  [docker://]HOST/REPO:TAG   an image in a registry
  oci:DIR[:TAG]              an OCI layout on this machine
  docker-archive:FILE        a file that "docker save" wrote

DESTINATION is one of
  docker://HOST/REPO[:TAG]   a registry
  oci:DIR[:TAG]              an OCI layout: an empty directory, or one that has other images

Registries are read and written with the credentials of this user's docker configuration.
The image is published when all of it is written. What was read is compared with its digests
before. The command needs space in --tmp: for the largest layer, unpacked, and for a registry
also for what is made of it. For soci it needs the space of the largest layer, as it is
stored, and only for a registry.

With --trace, snapshotters first fetch what recorded starts have read: layers begin with
these files, and soci lists the parts of the layers that have been read. FILE is what
"lighter trace record --output" or "lighter trace export" writes, and may be of another
image with some of the same files. With --prioritize, FILE has a path in each line, in the
order of the first reads. These files come before those of traces.`,
		Example: `  lighter export --format estargz --to docker://registry.example.org/lazy/root:6.32 registry.example.org/physics/root:6.32
  lighter export --format zstdchunked --to oci:build/lazy:latest oci:build/image:latest
  lighter export --format soci --to docker://registry.example.org/physics/root:6.32-soci registry.example.org/physics/root:6.32
  lighter export --format soci --trace root.trace --to docker://registry.example.org/physics/root:6.32-soci registry.example.org/physics/root:6.32
  lighter export --format estargz --platform all --prioritize first.txt --to oci:lazy docker-archive:image.tar`,
		Args: command.Exactly("IMAGE"),
	}
	f := cmd.Flags()
	f.StringVar(&o.format, "format", "", "the `FORMAT` of the image: estargz, zstdchunked or soci")
	f.StringVar(&o.to, "to", "", "where to write the image (`DESTINATION`)")
	f.StringVar(&o.platform, "platform", "", "the image's `OS/ARCH[/VARIANT]`, or all; default: this machine's")
	f.StringVar(&o.prioritize, "prioritize", "", "a `FILE` with the paths of files that are fetched first")
	f.StringArrayVar(&o.traces, "trace", nil,
		"a `FILE` with recorded starts, whose files are fetched first; may be repeated")
	f.IntVar(&o.Level, "level", 0, "the `LEVEL` of compression: estargz 1 to 9, zstdchunked 1 to 22; default: 6, and 3")
	f.IntVar(&o.Jobs, "jobs", runtime.GOMAXPROCS(0), "how many parts (`NUMBER`) of a layer are compressed at a time")
	f.StringVar(&o.Dir, "tmp", "", "the `DIR` for temporary files; default: TMPDIR, or /tmp")
	f.BoolVar(&o.sourcePlainHTTP, "source-plain-http", false,
		"allow plain HTTP to a registry that is read and is not on this machine")
	f.BoolVar(&o.plainHTTP, "plain-http", false,
		"allow plain HTTP to a registry that is written and is not on this machine")
	return query(cmd, o.parse, func(ctx context.Context, o export, args []string) (conversion.Result, error) {
		return watch(func(show func(wire.Progress)) (conversion.Result, error) {
			o.Report = func(step, layer string, done, total int64) {
				show(wire.Progress{Step: step, Item: layer, Bytes: done, Total: total})
			}
			return o.run(ctx, args[0])
		})
	}, printExport)
}

// export has the flags of the command.
type export struct {
	conversion.Options
	format, to, platform, prioritize string
	traces                           []string
	plainHTTP, sourcePlainHTTP       bool
}

// parse completes the options.
func (o *export) parse() (export, error) {
	err := registry.CheckPlatform(o.platform)
	if err == nil && o.format == "" {
		err = errors.New("--format is missing: want estargz, zstdchunked or soci")
	}
	if err == nil {
		o.Format = conversion.Format(o.format)
		err = o.Check()
	}
	if err == nil && o.Jobs < 1 {
		err = fmt.Errorf("--jobs %d: want at least 1", o.Jobs)
	}
	if err == nil && o.to == "" {
		err = errors.New("--to is missing: want docker://HOST/REPO[:TAG] or oci:DIR[:TAG]")
	}
	if err == nil && o.prioritize != "" {
		o.Prioritized, err = conversion.ReadPaths(o.prioritize)
	}
	if err == nil {
		var recordings []trace.Recording
		recordings, err = attachment.ReadRecordings(o.traces...)
		o.Prioritized = append(o.Prioritized, conversion.PartsOf(recordings)...)
	}
	if err != nil {
		return *o, command.Usage(err)
	}
	return *o, nil
}

// run opens source and destination, and converts the image.
func (o *export) run(ctx context.Context, image string) (done conversion.Result, err error) {
	source, err := imageSource(ctx, image, o.sourcePlainHTTP)
	if err != nil {
		return done, err
	}
	originals, err := source.Originals(o.platform)
	if err != nil {
		return done, err
	}
	to, err := conversion.Open(ctx, o.to, o.plainHTTP)
	if errors.Is(err, conversion.ErrNoDestination) || errors.Is(err, registry.ErrNoImage) {
		err = command.Usage(err)
	}
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	if done, err = conversion.Convert(ctx, originals, to, o.Options); err != nil {
		return done, fmt.Errorf("export %s: %w", source.Name, err)
	}
	return done, nil
}

// imageSource opens an image that is on this machine or in a registry.
func imageSource(ctx context.Context, image string, plainHTTP bool) (*registry.Source, error) {
	if strings.HasPrefix(image, "oci:") || strings.HasPrefix(image, "docker-archive:") {
		local, err := registry.OpenLocal(image)
		if err != nil {
			return nil, command.Usage(err)
		}
		return local.Source(), nil
	}
	source, err := registry.FindSource(ctx, strings.TrimPrefix(image, "docker://"), plainHTTP)
	if errors.Is(err, registry.ErrNoImage) {
		err = command.Usage(err)
	}
	return source, err
}

func printExport(done conversion.Result) error {
	fmt.Printf("%s %s\n", done.Name, done.Digest)
	for _, image := range done.Images {
		fmt.Printf("\n%s: %s\n", image.Platform, english.Plural(len(image.Layers), "layer", ""))
		if len(image.Layers) == 0 {
			continue
		}
		if done.Format == conversion.SOCI {
			if err := printIndexed(image); err != nil {
				return err
			}
			continue
		}
		rows := rowsOf(image.Layers, func(l conversion.Layer) []any {
			return []any{short(l.From), size(l.OldSize), short(l.Digest), size(l.NewSize)}
		})
		if err := table(os.Stdout, "OLD LAYER\tSIZE\tNEW LAYER\tSIZE", rows); err != nil {
			return err
		}
	}
	return nil
}

// printIndexed prints the layers of an image, which are the old ones, and their zTOCs.
func printIndexed(image conversion.Image) error {
	rows := rowsOf(image.Layers, func(l conversion.Layer) []any {
		if l.ZTOC == "" {
			return []any{short(l.Digest), size(l.NewSize), "-", "-"}
		}
		return []any{short(l.Digest), size(l.NewSize), short(l.ZTOC), size(l.ZTOCSize)}
	})
	return table(os.Stdout, "LAYER\tSIZE\tZTOC\tSIZE", rows)
}
