package containerd

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/containerd/errdefs"
)

// For unknown chains, the snapshotter answers each request as containerd's overlay snapshotter
// does.
func TestPlainIsOverlay(t *testing.T) {
	for _, remap := range []bool{false, true} {
		t.Run(fmt.Sprint("remap ", remap), func(t *testing.T) {
			opts := []overlay.Opt{overlay.AsynchronousRemove}
			if remap {
				opts = append(opts, overlay.WithRemapIDs)
			}
			root := t.TempDir()
			theirs := must[snapshots.Snapshotter](t)(overlay.NewSnapshotter(root, opts...))
			defer theirs.Close()
			chains := newFake(t)
			config := Config{Dir: filepath.Join(t.TempDir(), "s"), RemapIDs: remap, Log: discard}
			ours := must[*Snapshotter](t)(New(config, chains))
			defer ours.Close()
			for i, step := range script {
				want, wantErr := step(t.Context(), theirs)
				got, gotErr := step(t.Context(), ours)
				gotText := strings.ReplaceAll(fmt.Sprint(got), ours.dir, filepath.Join(root, "snapshots"))
				if gotText != fmt.Sprint(want) {
					t.Errorf("step %d: %s, want %v as from overlay", i, gotText, want)
				}
				if k := kind(wantErr); k != kind(gotErr) && (k != unnamed || gotErr == nil) {
					t.Errorf("step %d: error %v, want %v as from overlay", i, gotErr, wantErr)
				}
			}
		})
	}
}

// unnamed stands for all kinds of errors that containerd does not distinguish. If containerd's
// snapshotter returns such an error, this snapshotter may return an error of a more exact kind.
const unnamed = "some error"

// kind returns the name of an error's kind, as far as containerd distinguishes kinds.
func kind(err error) string {
	for name, is := range map[string]func(error) bool{
		"not found":           errdefs.IsNotFound,
		"already exists":      errdefs.IsAlreadyExists,
		"failed precondition": errdefs.IsFailedPrecondition,
		"invalid argument":    errdefs.IsInvalidArgument,
		"unavailable":         errdefs.IsUnavailable,
	} {
		if is(err) {
			return name
		}
	}
	if err != nil {
		return unnamed
	}
	return ""
}

// step is one request to a snapshotter. It returns what the snapshotters have to agree on.
type step func(ctx context.Context, sn snapshots.Snapshotter) (any, error)

func prepare(key, parent string, opts ...snapshots.Opt) step {
	return func(ctx context.Context, sn snapshots.Snapshotter) (any, error) {
		return sn.Prepare(ctx, key, parent, opts...)
	}
}

func view(key, parent string, opts ...snapshots.Opt) step {
	return func(ctx context.Context, sn snapshots.Snapshotter) (any, error) {
		return sn.View(ctx, key, parent, opts...)
	}
}

func mounts(key string) step {
	return func(ctx context.Context, sn snapshots.Snapshotter) (any, error) { return sn.Mounts(ctx, key) }
}

func commit(name, key string, opts ...snapshots.Opt) step {
	return func(ctx context.Context, sn snapshots.Snapshotter) (any, error) {
		return nil, sn.Commit(ctx, name, key, opts...)
	}
}

func remove(key string) step {
	return func(ctx context.Context, sn snapshots.Snapshotter) (any, error) { return nil, sn.Remove(ctx, key) }
}

func usage(key string) step {
	return func(ctx context.Context, sn snapshots.Snapshotter) (any, error) { return sn.Usage(ctx, key) }
}

func update(key string, labels map[string]string, paths ...string) step {
	return func(ctx context.Context, sn snapshots.Snapshotter) (any, error) {
		info, err := sn.Update(ctx, snapshots.Info{Name: key, Labels: labels}, paths...)
		return timeless(info), err
	}
}

func stat(key string) step {
	return func(ctx context.Context, sn snapshots.Snapshotter) (any, error) {
		info, err := sn.Stat(ctx, key)
		return timeless(info), err
	}
}

func walk(filters ...string) step {
	return func(ctx context.Context, sn snapshots.Snapshotter) (any, error) {
		var infos []any
		err := sn.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
			infos = append(infos, timeless(info))
			return nil
		}, filters...)
		return infos, err
	}
}

func cleanup(ctx context.Context, sn snapshots.Snapshotter) (any, error) {
	return nil, sn.(snapshots.Cleaner).Cleanup(ctx)
}

// timeless returns a snapshot's record without its times.
func timeless(info snapshots.Info) any {
	return []any{info.Kind, info.Name, info.Parent, info.Labels}
}

var (
	mapping = snapshots.WithLabels(map[string]string{
		snapshots.LabelSnapshotUIDMapping: "0:0:65536", snapshots.LabelSnapshotGIDMapping: "0:0:65536"})
	badMapping = snapshots.WithLabels(map[string]string{snapshots.LabelSnapshotUIDMapping: "1:1:1"})

	script = []step{
		prepare("a", ""), mounts("a"), prepare("a", ""), usage("a"), stat("a"), prepare("b", "a"),
		commit("A", "a", ref(chainID("a"))), commit("A", "a"), stat("a"), stat("A"), usage("A"), mounts("A"),
		mounts("nothing"),
		prepare("b", "A"), mounts("b"), prepare("x", "nothing"), view("v", "A"), mounts("v"), view("v0", ""),
		commit("B", "b"), commit("V", "v"), prepare("c", "B"), commit("C", "c"),
		prepare("d", "C", ref("odd")), view("vC", "C"), mounts("vC"), mounts("d"), view("vB", "B"),
		prepare("r", ""), commit("R", "r", snapshots.WithParent("nothing")),
		commit("R", "r", snapshots.WithParent("C")),
		view("vR", "R"), stat("R"), prepare("s", "B"), commit("S", "s", snapshots.WithParent("C")), commit("C", "s"),
		update("C", map[string]string{"l": "1", "m": "2"}), update("C", map[string]string{"l": "3"}, "labels.l"),
		update("C", nil, "labels"), update("C", nil, "parent"), update("nothing", nil),
		walk(), walk("kind==committed"), walk("parent==B"), walk("no filter ("),
		remove("C"), remove("nothing"), remove("vC"), remove("d"), remove("d"), cleanup, usage("nothing"),
		prepare("e", "C", mapping), mounts("e"), view("ve", "A", mapping), prepare("f", "", mapping),
		prepare("g", "", badMapping), walk(),
		commit("E", "e", mapping), prepare("h", "E"), mounts("h"), usage("h"), cleanup,
	}
)
