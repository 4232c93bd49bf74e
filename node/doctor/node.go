package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"lighter/buildinfo"
	"lighter/node/control"
	"lighter/node/mount"
	"lighter/node/report"
)

// node checks whether a node runs, and what it reports.
func (m *machine) node(context.Context) []Finding {
	if s := m.status; s != nil {
		return m.judgeNode(s)
	}
	connection, err := mount.Connection(m.config.Root)
	start := "lighter node --root " + m.config.Root
	return first([]rule{
		{!errors.Is(m.noStatus, control.ErrNoDaemon), Unchecked, "the node does not answer: " + m.noStatus.Error(), ""},
		{err == nil && connection != "", Problem, "no node runs, and reads of running containers wait for one", start},
		{true, Problem, "no node runs with root " + m.config.Root, start},
	})
}

func (m *machine) judgeNode(s *report.Status) []Finding {
	version := buildinfo.Release()
	rules := []rule{
		{s.Version == version, OK,
			"the node has run since " + s.Started.Local().Format(time.DateTime) + ", version " + version, ""},
		{s.Version != version, Warning, "the running node is version " + s.Version + ", and this program is " + version,
			"restart the node: containers continue meanwhile"},
		{s.NotLazy != "", Problem, "no image is lazy: " + s.NotLazy,
			`see the findings about the kernel above, and set mount_mode = "auto"; then restart the node`},
		{s.Keeper.Error != "", Problem,
			"no keeper holds the devices, so containers get errors when this node ends: " + s.Keeper.Error,
			"restart the node when no container uses it"},
		{s.NoMetrics != "", Warning, "metrics, health and readiness are not available: " + s.NoMetrics,
			"another http_address; then restart the node"},
	}
	for _, lost := range s.Lost {
		image := cmp.Or(strings.Join(lost.Images, ", "), "an image without a name")
		rules = append(rules, rule{true, Problem,
			"tree " + lost.Tree.Short() + " of " + image + " is broken: " + lost.Cause,
			"ctr images rm --sync IMAGE, and pull it again (its chains: lighter status)"})
	}
	for _, r := range s.Refused {
		image := cmp.Or(strings.Join(r.Images, ", "), "chain "+r.Chain)
		rules = append(rules, rule{true, Problem,
			"the statement of " + image + " is refused: its tree is served, but no new pull uses it: " + r.Cause,
			r.Repair})
	}
	for _, left := range s.Leftovers {
		rules = append(rules, rule{true, Warning, left.Path + " could not be cleaned up: " + left.Cause,
			"df -h " + s.Root + "; lsattr -d " + left.Path + "; then restart the node"})
	}
	if d := s.Directory; d != nil {
		rules = append(rules, rule{d.Hidden != "", Problem, "the directory of images is not shown: " + d.Hidden,
			"repair that, or configure another directory; then restart the node"})
	}
	if b := s.Blobs; b != nil {
		rules = append(rules,
			rule{b.Problem != "", Problem, "docker push and save lack the layers of new lazy images: " + b.Problem,
				"see the node's log; then restart the node"},
			rule{b.Unknown > 0, Warning, fmt.Sprintf("containerd lacks %d layers that no hub has, so docker push "+
				"and save of their images fail", b.Unknown), "remove these images and pull them again"},
			rule{b.Failure != "", Warning, "a layer could not be fetched for containerd: " + b.Failure,
				"push or save again once this is repaired"})
	}
	if st := s.ImageStore; st != nil {
		if st.Trees != nil {
			rules = append(rules, rule{st.Trees.Hidden != "", Problem,
				"no image of the image store can be started: " + st.Trees.Hidden,
				"repair that, or configure another image_store; then restart the node"},
				rule{st.Trees.Hidden == "", OK, fmt.Sprintf("the image store %s can be read (images: %d); root's "+
					"podman run with --uidmap or --userns=auto cannot start them, and rootless Podman can", st.Dir,
					st.Images), ""})
		}
		rules = append(rules, rule{st.Failed != "", Warning,
			"the image store does not have all images of the hubs: " + st.Failed,
			"lighter status; df -h " + st.Dir})
	}
	for _, b := range s.Binds {
		rules = append(rules, rule{b.Lost != "", Problem,
			"image " + b.Name + " is not mounted at " + b.Dir + " any more: " + b.Lost,
			"lighter unmount " + b.Dir + ", and mount it again"})
	}
	lazy := "lighter add docker://"
	if len(s.Hubs) == 0 {
		lazy = "attached_keys in the node's configuration, and lighter attach --key FILE "
	}
	for _, i := range s.Images {
		rules = append(rules, rule{!i.Lazy && i.Image != "", Warning, "image " + i.Image + " is not lazy: " + i.Why,
			lazy + i.Image + ", then remove the image here and pull it again"})
	}
	return all("", rules)
}
