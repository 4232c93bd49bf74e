package starts

import (
	"context"
	"errors"
	"strings"
	"time"

	"lighter/bench"
	"lighter/test/testkit/site"
)

// visit is one turn of a way: the starts of one image's workloads over one link in one round.
type visit struct {
	link      bench.Link
	way       string
	image     string
	workloads []bench.Workload
	round     int
}

// visit measures the starts of one turn.
func (r *run) visit(ctx context.Context, v visit) error {
	r.Site.SetPeer(nil)
	r.Site.SetNodeArgs()
	r.Site.SetNode("")
	switch v.way {
	case Overlayfs:
		return r.fullPull(ctx, v)
	case LighterLocal:
		return r.local(ctx, v)
	case LighterFirst:
		r.Site.UseHub(r.Site.Hub)
		r.Site.SetNodeArgs(unrecorded)
		return r.cold(ctx, v, site.Lighter, site.Reference(v.image), r.Site.Machine.Pull)
	case Lighter, LighterBefore:
		r.Site.UseHub(r.recorded)
		if v.way == LighterBefore {
			r.Site.SetNode(r.options.Before)
		}
		return r.cold(ctx, v, site.Lighter, site.Reference(v.image), r.Site.Machine.Pull)
	}
	peer := r.peer(v.way)
	if peer.Snapshotter == site.Lighter {
		args, err := r.words(peer.NodeArgs, map[string]string{"registries": r.direct.registries, "key": r.direct.key})
		if err != nil {
			return err
		}
		r.Site.SetNodeArgs(append(args, unrecorded)...)
		return r.cold(ctx, v, site.Lighter, site.Reference(v.image+peer.Suffix), r.puller(peer))
	}
	command, err := r.words(peer.Command, nil)
	if err != nil {
		return err
	}
	r.Site.SetPeer(&site.Peer{Snapshotter: peer.Snapshotter, Command: command, Capabilities: peer.Capabilities,
		Exports: peer.Exports})
	return r.cold(ctx, v, peer.Snapshotter, site.Reference(v.image+peer.Suffix), r.puller(peer))
}

// unrecorded is the flag of nodes that must not report traces to their hub.
const unrecorded = "--record=false"

// cold measures each workload on a wiped machine.
func (r *run) cold(ctx context.Context, v visit, snapshotter, ref string, pull bench.Puller) error {
	for _, w := range v.workloads {
		if err := r.Wipe(ctx); err != nil {
			return err
		}
		p, err := r.Pull(ctx, pull, snapshotter, ref)
		if err != nil {
			return err
		}
		if err := r.start(ctx, v, w, p, snapshotter, ref); err != nil {
			return err
		}
	}
	return nil
}

// start runs a workload of a pulled image, and adds the sample to the result.
func (r *run) start(ctx context.Context, v visit, w bench.Workload, p bench.Pulled, snapshotter, ref string) error {
	s, err := r.Run(ctx, p, snapshotter, ref, w)
	if err != nil {
		return err
	}
	sample := Sample{Link: v.link.Name, Image: w.Image, Workload: w.Name, Way: v.way, Round: v.round}
	if snapshotter == site.Lighter {
		if err := r.AssertLazy(ctx, w.Image); err != nil {
			return err
		}
		if sample.Fetched, sample.Read, err = r.nodeBytes(ctx); err != nil {
			return err
		}
	}
	if err := r.RunAgain(ctx, &s, snapshotter, ref, w); err != nil {
		return err
	}
	sample.Start = s
	r.result.Samples = append(r.result.Samples, sample)
	r.done++
	bench.Say("%4d/%d  %-12s %-16s %-13s pull %s  create %s  ready %s  done %s  total %s  second %s  %s", r.done,
		r.cells()*r.Rounds, v.link.Name, w, v.way,
		bench.Seconds(s.Pull), bench.Seconds(s.Create), bench.Seconds(s.Ready), bench.Seconds(s.Run),
		bench.Seconds(s.Total()), bench.Seconds(s.Second), bench.Size(s.Bytes))
	return nil
}

// nodeBytes returns the bytes of units that the node has fetched, and the bytes of the image that
// the kernel has read, since the start of the node.
func (r *run) nodeBytes(ctx context.Context) (fetched, read int64, err error) {
	var status struct {
		Fetched struct{ Bytes int64 }
		Mounts  []struct{ Device struct{ Bytes int64 } }
	}
	err = r.Site.Machine.NodeStatus(ctx, &status)
	for _, m := range status.Mounts {
		read += m.Device.Bytes
	}
	return status.Fetched.Bytes, read, err
}

// fullPull runs the workloads with all data on the disk and an empty page cache. The first rounds
// pull; later rounds reuse their disks and times.
func (r *run) fullPull(ctx context.Context, v visit) error {
	ref := site.Reference(v.image)
	if v.round == 0 {
		r.pulls = map[int]bench.Pulled{}
	}
	if v.round < r.FullPulls {
		if err := r.Wipe(ctx); err != nil {
			return err
		}
		p, err := r.Pull(ctx, r.Site.Machine.Pull, site.Overlayfs, ref)
		if err != nil {
			return err
		}
		r.pulls[v.round] = p
	} else if err := r.Site.Machine.Restore(ctx, v.disk()); err != nil {
		return err
	}
	pulled, ok := r.pulls[v.round%r.FullPulls]
	if !ok {
		return errors.New("reuse a pull: the pull of an earlier round failed")
	}
	for _, w := range v.workloads {
		p, err := r.Before(pulled)
		if err != nil {
			return err
		}
		if err := site.DropCaches(); err != nil {
			return err
		}
		if err := r.start(ctx, v, w, p, site.Overlayfs, ref); err != nil {
			return err
		}
	}
	if v.round+1 < r.FullPulls { // the next round pulls
		return nil
	}
	return r.keep(ctx, v)
}

// keep saves the machine's disk for the next round of the same measurement.
func (r *run) keep(ctx context.Context, v visit) error {
	if v.round+1 == r.Rounds {
		return nil
	}
	return r.Site.Machine.Keep(ctx, v.disk())
}

// disk returns the name of the saved disk of a visit's rounds.
func (v visit) disk() string { return strings.Join([]string{v.way, v.image, v.link.Name}, "-") }

// keeping is a namespace of containerd that has the image, so that the node does not remove the
// image's index. The measured pulls use another namespace.
const keeping = "keeping"

// local measures with the whole image and its index on the node's disk. The image is neither in
// memory nor in the namespace of containerd that pulls it.
func (r *run) local(ctx context.Context, v visit) error {
	m, ref := r.Site.Machine, site.Reference(v.image)
	r.Site.UseHub(r.recorded)
	r.Site.SetNodeArgs(unrecorded)
	if v.round > 0 {
		if err := m.Restore(ctx, v.disk()); err != nil {
			return err
		}
	} else if err := r.quickly(ctx, v.link, func() error { return r.fetchAll(ctx, ref) }); err != nil {
		return err
	}
	for _, w := range v.workloads {
		// After a restart the node has no mounts.
		if err := errors.Join(m.StopNode(), m.StartNode(ctx)); err != nil {
			return err
		}
		if err := errors.Join(m.Reconnect(ctx), site.DropCaches()); err != nil {
			return err
		}
		p, err := r.Pull(ctx, m.Pull, site.Lighter, ref)
		if err != nil {
			return err
		}
		if err := r.start(ctx, v, w, p, site.Lighter, ref); err != nil {
			return err
		}
		if err := m.RemoveImage(ctx, ref); err != nil {
			return err
		}
	}
	return r.keep(ctx, v)
}

// fetchAll fetches a whole image on a wiped machine.
func (r *run) fetchAll(ctx context.Context, ref string) error {
	if err := r.Wipe(ctx); err != nil {
		return err
	}
	if _, err := r.Site.Machine.CtrIn(ctx, keeping, "images", "pull", "--plain-http", "--snapshotter", site.Lighter,
		ref); err != nil {
		return err
	}
	_, err := r.Site.Machine.Lighter(ctx, "cache", "pin", "--fetch", ref)
	return err
}

// quickRate is the rate of the link outside of measurements.
const quickRate = "10gbit"

// quickly calls fn with the link at quickRate, for work that is not measured.
func (r *run) quickly(ctx context.Context, l bench.Link, fn func() error) error {
	if err := r.Site.SetLink(ctx, quickRate, 0); err != nil {
		return err
	}
	err := fn()
	return errors.Join(err, r.Site.SetLink(ctx, l.Rate, time.Duration(l.RTT)))
}

// prepare adds an image to the registry and the hubs, waits for the startup packs of the hub's
// guess, and adds the image's description to the result.
func (r *run) prepare(ctx context.Context, image string) error {
	if err := r.Need(ctx, image); err != nil {
		return err
	}
	if r.recorded != nil {
		if err := r.NeedOn(ctx, r.recorded, image); err != nil {
			return err
		}
	}
	if _, err := bench.AwaitLayout(ctx, r.Site.Hub, image, 0); err != nil { // the startup packs of its guess
		return err
	}
	i, err := r.Inspect(ctx, image)
	if err != nil {
		return err
	}
	compressed, err := r.Compressed(image)
	if err != nil {
		return err
	}
	r.result.Images = append(r.result.Images, Image{Name: image, Layers: len(i.Layers), Files: i.Files, Size: i.Bytes,
		Compressed: compressed})
	return nil
}
