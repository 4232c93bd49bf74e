package figures

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"lighter/bench"
	"lighter/test/testkit/layout"
	"lighter/test/testkit/site"
)

// Targets of the figure ingest.
const (
	ingestRatio = 1.2  // time of an ingestion : time of a pull
	againAtMost = 0.05 // seconds, for an image that the hub already has
)

// ingest adds each image to an empty hub, and pulls it into an empty overlayfs: the same image,
// from the same registry, over the same link, to the same disk.
func (r *run) ingest(ctx context.Context) error {
	for _, image := range r.images() {
		layout, err := r.Config.Layout(image)
		if err != nil {
			return err
		}
		if err := r.Site.Push(ctx, layout, image); err != nil {
			return err
		}
		times := map[string][]float64{}
		err = r.bothModes(func(round int, mode string) error {
			if mode == site.Overlayfs {
				took, err := r.pullAlone(ctx, image)
				times[mode] = append(times[mode], took)
				bench.Say("%-10s pulled into overlayfs in %s", image, bench.Seconds(took))
				return err
			}
			took, again, err := r.ingestOnce(ctx, image)
			times[mode], times["again"] = append(times[mode], took), append(times["again"], again)
			bench.Say("%-10s ingested in %s, again in %s", image, bench.Seconds(took), bench.Seconds(again))
			return err
		})
		if err != nil {
			return fmt.Errorf("image %s: %w", image, err)
		}
		r.judgeIngest(image, times)
	}
	return nil
}

func (r *run) pullAlone(ctx context.Context, image string) (float64, error) {
	if err := r.Wipe(ctx); err != nil {
		return 0, err
	}
	took, err := r.Site.Machine.Pull(ctx, site.Overlayfs, site.Reference(image))
	return took.Seconds(), err
}

// ingestOnce returns the times of an ingestion by an empty hub, and of a second ingestion of the
// same image.
func (r *run) ingestOnce(ctx context.Context, image string) (took, again float64, err error) {
	h, err := r.Site.Machine.StartHub(ctx, "ingest")
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	if err := site.DropCaches(); err != nil {
		return 0, 0, err
	}
	if took, err = timed(func() error { return h.Add(ctx, image) }); err != nil {
		return 0, 0, err
	}
	again, err = timed(func() error { return h.Add(ctx, image) })
	return took, again, err
}

func (r *run) judgeIngest(image string, times map[string][]float64) {
	r.rows = append(r.rows,
		timesRow(image, "pull alone", site.Overlayfs, times[site.Overlayfs]),
		timesRow(image, "ingest", site.Lighter, times[site.Lighter]),
		timesRow(image, "ingest again", site.Lighter, times["again"]))
	r.judge("ingest", image+" : pull into overlayfs", bench.Median(times[site.Overlayfs]),
		bench.Median(times[site.Lighter]), ingestRatio)
	v := verdict{Figure: "ingest", What: image + ", already there",
		Lighter: bench.Seconds(bench.Median(times["again"])), Unit: "s"}
	v.Value, v.Target, v.Result = atMost(bench.Median(times["again"]), againAtMost)
	r.verdicts = append(r.verdicts, v)
}

// The image of the figure million, and the figure's target.
const (
	millionFiles = 1_000_000
	millionDirs  = 10_000
	makeMemory   = 1 << 30 // peak memory of the hub, in bytes
)

// million makes an image of a million files, and reports the cost of its index.
func (r *run) million(ctx context.Context) error {
	from, err := r.Config.Layout("base")
	if err != nil {
		return err
	}
	dir := filepath.Join(r.Site.Dir, "layouts", "million")
	if err := layout.Extend(from, dir, writeMillion); err != nil {
		return err
	}
	if err := r.Site.Push(ctx, dir, "million"); err != nil {
		return err
	}
	if err := r.Wipe(ctx); err != nil {
		return err
	}
	if err := r.Site.ResetPeaks(); err != nil {
		return err
	}
	made, err := timed(func() error { return r.Site.Hub.Add(ctx, "million") })
	if err != nil {
		return err
	}
	hub, err := r.Site.Hub.Memory()
	if err != nil {
		return err
	}
	bench.Say("index made in %s, peak memory of the hub %s", bench.Seconds(made), bench.Size(hub.Most))
	pull, mounted, err := r.mountMillion(ctx)
	if err != nil {
		return err
	}
	return r.reportMillion(ctx, map[string]float64{"make_s": made, "hub_most_bytes": float64(hub.Most),
		"pull_s": pull, "container_s": mounted})
}

// writeMillion writes files of 50 to 5,000 bytes, all of them different.
func writeMillion(l *layout.Layer) error {
	text := make([]byte, 0, 8<<10)
	for i := range millionFiles {
		const inDir = millionFiles / millionDirs
		dir := fmt.Sprintf("srv/%03d/%05d", i/inDir/100, i/inDir)
		if i%inDir == 0 {
			if err := l.Dir(dir); err != nil {
				return err
			}
		}
		text = text[:0]
		for size := 50 + i*7919%4950; len(text) < size; {
			text = fmt.Appendf(text, "line %d of file %d is not like any other line\n", len(text), i)
		}
		if err := l.File(fmt.Sprintf("%s/module_%07d.py", dir, i), text); err != nil {
			return err
		}
	}
	return nil
}

// mountMillion returns the times of the pull and of the first container.
func (r *run) mountMillion(ctx context.Context) (pull, container float64, err error) {
	if err := r.Wipe(ctx); err != nil {
		return 0, 0, err
	}
	took, err := r.Site.Machine.Pull(ctx, site.Lighter, site.Reference("million"))
	if err != nil {
		return 0, 0, err
	}
	ran, err := r.Site.Machine.Run(ctx, site.Lighter, site.Reference("million"), "ls", "/srv/099/09999")
	if err != nil {
		return 0, 0, err
	}
	return took.Seconds(), ran.Total().Seconds(), r.AssertLazy(ctx, "million")
}

func (r *run) reportMillion(ctx context.Context, values map[string]float64) error {
	node, err := r.Site.Machine.NodeMemory()
	if err != nil {
		return err
	}
	i, err := r.Inspect(ctx, "million")
	if err != nil {
		return err
	}
	values["node_most_bytes"], values["files"] = float64(node.Most), float64(i.Files)
	values["index_bytes"], values["index_wire_bytes"] = float64(i.IndexSize), float64(i.IndexWire)
	r.rows = append(r.rows, benchRow{row: row{Workload: "million files", Mode: site.Lighter, PullS: values["pull_s"],
		RunS:   values["container_s"],
		TotalS: values["pull_s"] + values["container_s"]}, Image: "million", Rounds: 1, Values: values})
	add := func(what, lighter, note string) {
		r.verdicts = append(r.verdicts, verdict{Figure: "million", What: what, Lighter: lighter, Result: noTarget,
			Note: note})
	}
	add("index on the disk", bench.Size(i.IndexSize), fmt.Sprintf("%d files", i.Files))
	add("index on the wire, with locations", bench.Size(i.IndexWire), "")
	add("time to make the index", bench.Seconds(values["make_s"]), "from the registry")
	v := verdict{Figure: "million", What: "memory to make the index", Note: "peak resident memory of the hub",
		Lighter: bench.Size(int64(values["hub_most_bytes"])), Unit: "MB"}
	v.Value, v.Target, v.Result = atMost(values["hub_most_bytes"]/1e6, makeMemory/1e6)
	r.verdicts = append(r.verdicts, v)
	add("pull; first container", bench.Seconds(values["pull_s"])+"; "+bench.Seconds(values["container_s"]),
		"peak memory of the node "+bench.Size(node.Most))
	return nil
}
