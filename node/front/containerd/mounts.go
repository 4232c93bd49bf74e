package containerd

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
)

// fsPath returns the directory with the files of a plain snapshot.
func (s *Snapshotter) fsPath(id string) string { return filepath.Join(s.dir, id, "fs") }

// lower returns the lower directories of f, topmost first. If one of them is a tree, lower mounts
// it.
//
// A view of only a tree gets an empty directory, too. So the view is an overlay, as a view of many
// layers would be. A bind mount is not enough: the option that containerd adds for SELinux
// (context=) has no effect on a bind mount. (Config.BindViews makes it a bind mount nevertheless.)
func (s *Snapshotter) lower(ctx context.Context, f frame) ([]string, error) {
	st := f.stack
	var dirs []string
	for _, id := range st.plain {
		dirs = append(dirs, s.fsPath(id))
	}
	if st.chain == "" {
		return dirs, nil
	}
	dir, err := s.mountChain(ctx, st.chain)
	if err != nil {
		return nil, err
	}
	if f.kind == snapshots.KindActive {
		s.chains.NoteStart(st.chain)
	}
	if dirs = append(dirs, dir); len(dirs) == 1 && f.kind == snapshots.KindView && !s.bindViews {
		dirs = append(dirs, filepath.Join(s.dir, emptyDir))
	}
	if len(dirs) > 1 && s.remapIDs && isMapped(f.labels) {
		return s.mappable(dirs)
	}
	return dirs, nil
}

// mounts returns the mounts of f over the lower directories. The mounts, and the order of their
// options, are those of containerd's overlay snapshotter.
func (s *Snapshotter) mounts(f frame, lower []string) []mount.Mount {
	options := s.mapOptions(f.labels)
	if f.isRebased() {
		lower = []string{filepath.Join(s.dir, emptyDir)}
	}
	switch {
	case len(lower) == 0 && f.kind == snapshots.KindView:
		return bind(s.fsPath(f.id), append(options, "ro"))
	case len(lower) == 0:
		return bind(s.fsPath(f.id), append(options, "rw"))
	case len(lower) == 1 && f.kind == snapshots.KindView:
		return bind(lower[0], append(options, "ro"))
	}
	if f.kind == snapshots.KindActive {
		options = append(options, "workdir="+filepath.Join(s.dir, f.id, "work"), "upperdir="+s.fsPath(f.id))
	}
	options = append(options, "lowerdir="+strings.Join(lower, ":"))
	return []mount.Mount{{Type: "overlay", Source: "overlay", Options: append(options, s.options...)}}
}

// bind returns a bind mount of source.
func bind(source string, options []string) []mount.Mount {
	return []mount.Mount{{Type: "bind", Source: source, Options: append(options, "rbind")}}
}

// isRebased reports whether f is a layer that is unpacked before its parent is known. Such a layer
// must be an overlay mount: on a bind mount, containerd's differ would apply the layer's whiteouts
// instead of recording them. (For its own overlay snapshotter, which it knows by name, containerd's
// unpacker replaces the bind mount by an overlay.)
func (f frame) isRebased() bool {
	isLowest := len(f.stack.plain) == 0 && f.stack.chain == ""
	return f.kind == snapshots.KindActive && isLowest && f.labels[labelParentChain] != ""
}
