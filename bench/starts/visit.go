package starts

import (
	"context"
	"errors"
	"strings"
	"time"

	"lighter/bench"
	"lighter/test/testkit/site"
)

// visit is one turn of one way to start, with the workloads of one image.
type visit struct {
	link      bench.Link
	way       string
	image     string
	workloads []bench.Workload
	round     int
}

// visit measures what belongs to one turn.
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
		r.Site.UseHub(r.traced)
		if v.way == LighterBefore {
			r.Site.SetNode(r.options.Before)
		}
		return r.cold(ctx, v, site.Lighter, site.Reference(v.image), r.Site.Machine.Pull)
	}
	peer := r.peer(v.way)
	command, err := r.words(peer.Command, nil)
	if err != nil {
		return err
	}
	r.Site.SetPeer(&site.Peer{Snapshotter: peer.Snapshotter, Command: command, Capabilities: peer.Capabilities,
		Exports: peer.Exports})
	return r.cold(ctx, v, peer.Snapshotter, site.Reference(v.image+peer.Suffix), r.puller(peer))
}

// unrecorded is the flag of nodes whose hub must not learn how images start.
const unrecorded = "--record=false"

// cold measures each workload on a machine that has nothing.
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

// start runs a workload of what was pulled, and keeps the sample.
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

// nodeBytes returns what the node has fetched of units, and what the kernel has
// read of the image, since the node was started.
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

// fullPull runs the workloads with everything on the disk and nothing in memory. In the
// first rounds it pulls, and in the others it has the disk and the times of those.
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
		return errors.New("the pull that this round belongs to has failed")
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

// keep puts the machine's disk aside for the next round of what is measured.
func (r *run) keep(ctx context.Context, v visit) error {
	if v.round+1 == r.Rounds {
		return nil
	}
	return r.Site.Machine.Keep(ctx, v.disk())
}

// disk names the disk that the rounds of a visit have in turn.
func (v visit) disk() string { return strings.Join([]string{v.way, v.image, v.link.Name}, "-") }

// keeping is the namespace of containerd in which an image stays, so that the node
// keeps its index: what is measured knows nothing of it.
const keeping = "keeping"

// local measures with all of the image on the node's disk, its index too, and
// nothing of it in containerd or in memory.
func (r *run) local(ctx context.Context, v visit) error {
	m, ref := r.Site.Machine, site.Reference(v.image)
	r.Site.UseHub(r.traced)
	r.Site.SetNodeArgs(unrecorded)
	if v.round > 0 {
		if err := m.Restore(ctx, v.disk()); err != nil {
			return err
		}
	} else if err := r.quickly(ctx, v.link, func() error { return r.fetchAll(ctx, ref) }); err != nil {
		return err
	}
	for _, w := range v.workloads {
		// A node that starts has nothing mounted.
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

// fetchAll brings all of an image to a machine that has nothing.
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

// quickRate is the rate of a link that nobody waits for.
const quickRate = "10gbit"

// quickly does what is not measured over such a link.
func (r *run) quickly(ctx context.Context, l bench.Link, fn func() error) error {
	if err := r.Site.SetLink(ctx, quickRate, 0); err != nil {
		return err
	}
	err := fn()
	return errors.Join(err, r.Site.SetLink(ctx, l.Rate, time.Duration(l.RTT)))
}

// prepare brings an image to the registry and the hubs, and gets whatever else is
// needed before it is measured.
func (r *run) prepare(ctx context.Context, image string) error {
	if err := r.Need(ctx, image); err != nil {
		return err
	}
	if r.traced != nil {
		if err := r.NeedOn(ctx, r.traced, image); err != nil {
			return err
		}
	}
	if _, err := bench.AwaitLayout(ctx, r.Site.Hub, image, 0); err != nil { // of what it guesses
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
