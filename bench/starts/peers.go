package starts

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lighter/bench"
	"lighter/test/testkit/site"
	"lighter/test/testkit/workdir"
)

// removeMissing removes the ways of peers whose programs are missing.
func (r *run) removeMissing() error {
	for _, p := range r.Peers {
		for _, line := range [][]string{p.Command, p.Convert, p.Pull} {
			words, err := r.words(line, nil)
			if err != nil {
				return err
			}
			if len(words) == 0 || !r.needs(p.Name) {
				continue
			}
			if _, err := exec.LookPath(words[0]); err != nil {
				bench.Say("%s is left out: %v (test/setup peers builds stargz and soci, test/setup nydus builds nydus)",
					p.Name, err)
				r.ways = slices.DeleteFunc(r.ways, func(way string) bool { return way == p.Name })
			}
		}
	}
	return nil
}

func (r *run) peer(name string) bench.Peer {
	return r.Peers[slices.IndexFunc(r.Peers, func(p bench.Peer) bool { return p.Name == name })]
}

// words replaces placeholders in a command line, except those that package site replaces.
func (r *run) words(line []string, names map[string]string) ([]string, error) {
	work, err := workdir.Path()
	if err != nil {
		return nil, err
	}
	pairs := []string{"{dir}", filepath.Dir(r.options.Lighter), "{tools}", filepath.Join(work, "tools"), "{work}", work}
	for name, value := range names {
		pairs = append(pairs, "{"+name+"}", value)
	}
	replacer := strings.NewReplacer(pairs...)
	words := make([]string, len(line))
	for i, word := range line {
		words[i] = replacer.Replace(word)
	}
	return words, nil
}

// convertAll converts an image for the peers. It returns the ways to measure, without the peers
// whose conversion failed, and the number of failed conversions.
func (r *run) convertAll(ctx context.Context, image string) (ways []string, failed int) {
	ways = slices.Clone(r.ways)
	for _, p := range r.Peers {
		if !r.needs(p.Name) || len(p.Convert) == 0 {
			continue
		}
		if err := r.convert(ctx, p, image); err != nil {
			bench.Say("%v", err)
			ways = slices.DeleteFunc(ways, func(way string) bool { return way == p.Name })
			failed++
		}
	}
	return ways, failed
}

// convert converts an image for a peer.
func (r *run) convert(ctx context.Context, p bench.Peer, image string) error {
	layout, err := r.Layout(image)
	if err != nil {
		return err
	}
	words, err := r.words(p.Convert, map[string]string{"source": site.Reference(image),
		"target": site.Reference(image + p.Suffix), "layout": layout, "trace": r.recordingsOf(image),
		"keyfile": r.direct.keyFile})
	if err != nil {
		return err
	}
	start := time.Now()
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("convert for %s: %s: %w: %s", p.Name, strings.Join(words, " "), err,
			strings.TrimSpace(string(out)))
	}
	bench.Say("%-10s converted for %s in %s", image, p.Name, bench.Seconds(time.Since(start).Seconds()))
	return nil
}

// puller returns the pull function of a peer.
func (r *run) puller(p bench.Peer) bench.Puller {
	m := r.Site.Machine
	if len(p.Pull) == 0 {
		return m.Pull
	}
	return func(ctx context.Context, snapshotter, ref string) (time.Duration, error) {
		words, err := r.words(p.Pull, map[string]string{"ref": ref, "snapshotter": snapshotter,
			"containerd": m.ContainerdSocket(), "namespace": m.Namespace()})
		if err != nil {
			return 0, err
		}
		start := time.Now()
		_, err = m.Command(ctx, words...)
		return time.Since(start), err
	}
}
