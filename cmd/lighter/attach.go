package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"lighter/bytesize"
	"lighter/cmd/command"
	"lighter/durable"
	"lighter/format/index"
	"lighter/store/attachment"
	"lighter/store/registry"
	"lighter/wire"
)

func attachCommand() *cobra.Command {
	a := attach{startup: 1 << 30}
	cmd := &cobra.Command{
		Use:   "attach [flags] --key FILE IMAGE",
		Short: "Attach an index to an image in its registry, so that nodes start it lazily without a hub",
		Long: `Attach an index to an image in its registry, so that nodes start it lazily without a hub.
The image stays as it is. Its layers are read once, and about 1 % of their size is pushed
beside it, as an artifact that refers to the image. Nodes find it when they pull the
image, and believe it if attached_keys in their configuration has the public key, which
the command prints.

IMAGE is HOST/REPO[:TAG|@DIGEST], in a registry that is read and written with the
credentials of this user's docker configuration. If it has several platforms, an index is
attached for this machine's, for --platform, or for all of them.

FILE of --key has an Ed25519 key in PEM form: one that "openssl genpkey -algorithm ed25519"
or --make-key made, or a hub's key file.

The artifact also has startup packs, which nodes fetch at once: what starts probably read,
by the image's own files, and with --trace what recorded starts have read. FILE is what
"lighter trace record --output" or "lighter trace export" writes, and may be of another
image with some of the same files. If the image has an index of this key already, --trace
makes only the startup packs again, and the layers are not read again. Without --trace,
such an index stays as it is. If the file of --key has a further key, which has not signed
the index yet, the index is only signed again.

Copying tools copy the artifact only if they copy what refers to an image (oras cp -r,
regctl image copy --referrers). Where it is lost, or a part of it, attach it again: the
command says what the registry had lost.

With --to, the artifact gets a tag for the chain of the image's layers in another
repository, which serves as a hub without a process (attached_from of nodes).

--list shows the indexes of an image, and what the registry has lost of them. --remove
removes them: those that the key of --key has signed, or without --key all of them. With
--to, they are those in the other repository.`,
		Example: `  lighter attach --make-key --key site.pem registry.example.org/physics/root:6.32
  lighter attach --key site.pem --trace root.trace registry.example.org/physics/root:6.32
  lighter attach --list registry.example.org/physics/root:6.32
  lighter attach --remove registry.example.org/physics/root:6.32`,
		Args: command.Exactly("IMAGE"),
	}
	f := cmd.Flags()
	f.StringVar(&a.key, "key", "", "the `FILE` with the key that signs the index")
	f.BoolVar(&a.makeKey, "make-key", false, "make the key file if it does not exist")
	f.StringArrayVar(&a.traces, "trace", nil, "a `FILE` with recorded starts; may be repeated")
	f.BoolVar(&a.Guess, "guess", true, "make startup packs of what starts probably read, too, by the image's own files")
	f.TextVar(&a.startup, "startup", a.startup, "the `SIZE` that all startup packs have at most, uncompressed")
	f.StringVar(&a.platform, "platform", "", "the image's `OS/ARCH[/VARIANT]`, or all; default: this machine's")
	f.StringVar(&a.place.Chains, "to", "", "push to this repository (`HOST/REPO`), under a tag for the chain")
	f.BoolVar(&a.list, "list", false, "show which indexes are attached")
	f.BoolVar(&a.remove, "remove", false, "remove the attached indexes")
	f.IntVar(&a.jobs, "jobs", runtime.GOMAXPROCS(0), "how many layers (`NUMBER`) are read at a time")
	f.StringVar(&a.dir, "tmp", "", "the `DIR` for temporary files; default: TMPDIR, or /tmp")
	f.BoolVar(&a.place.PlainHTTP, "plain-http", false, "allow plain HTTP to a registry that is not on this machine")
	return query(cmd, a.parse, func(ctx context.Context, a attach, args []string) (attachResult, error) {
		if asJSON, err := cmd.Flags().GetBool("json"); err != nil || !asJSON {
			a.show = printAttached
		}
		return a.run(ctx, args[0])
	}, printAttach)
}

// attach has the flags of the command.
type attach struct {
	attachment.Options
	place                 attachment.Place
	startup               bytesize.Size
	key, platform, dir    string
	traces                []string
	makeKey, list, remove bool
	jobs                  int
	// show prints what was done for a platform, as soon as it is. nil: it is printed with the rest.
	show func(ref string, done attachment.Result)
}

// attachResult is what the command prints, also if it fails after a part of its work.
type attachResult struct {
	Image   string              `json:"image"`
	Done    []attachment.Result `json:"done,omitempty"`
	Indexes []attachedIndex     `json:"indexes,omitempty"` // that were found with --list, or removed
	Refused string              `json:"refused,omitempty"` // why others were not listed
	Removed bool                `json:"removed,omitempty"` // the indexes were removed
	Failed  string              `json:"failed,omitempty"`  // which platform failed, and why; further ones were not tried

	failed error // has the text Failed
}

// Err returns why the command failed after it was done for other platforms.
func (r attachResult) Err() error { return r.failed }

// attachedIndex is an index that is attached to an image. Sizes are in bytes.
type attachedIndex struct {
	Platform string `json:"platform"`
	Manifest string `json:"manifest"`
	Artifact string `json:"artifact"`
	Key      string `json:"key"`
	Tree     string `json:"tree"`
	Version  int    `json:"version"`
	Packs    int    `json:"packs"`
	Bytes    int64  `json:"bytes"`
}

// parse completes the options.
func (a *attach) parse() (attach, error) {
	err := registry.CheckPlatform(a.platform)
	switch {
	case err != nil:
	case a.list && (a.remove || a.key != "" || len(a.traces) > 0):
		err = errors.New("--list goes with --platform, --to and --plain-http only")
	case a.remove && len(a.traces) > 0:
		err = errors.New("--remove goes with --key, --platform, --to and --plain-http only")
	case a.key == "" && !a.list && !a.remove:
		err = errors.New("--key is missing: want the file of the key that signs the index (--make-key makes it)")
	case a.jobs < 1:
		err = fmt.Errorf("--jobs %d: want at least 1", a.jobs)
	case a.startup < 0:
		err = fmt.Errorf("--startup %s: want at least 0", a.startup)
	}
	if err != nil {
		return *a, command.Usage(err)
	}
	if a.key != "" {
		if a.Keys, err = signingKeys(a.key, a.makeKey); err != nil {
			return *a, err
		}
	}
	a.Startup, a.Jobs, a.Dir = int64(a.startup), a.jobs, a.dir
	a.Recordings, err = attachment.ReadRecordings(a.traces...)
	return *a, err
}

// signingKeys reads the keys in a file, or makes one.
func signingKeys(file string, create bool) ([]ed25519.PrivateKey, error) {
	text, err := os.ReadFile(file)
	switch missing := errors.Is(err, fs.ErrNotExist); {
	case missing && create:
		if text, err = makeSigningKey(file); err != nil {
			return nil, fmt.Errorf("make the signing key %s: %w", file, err)
		}
	case missing:
		err = fmt.Errorf("%w (--make-key makes one)", err)
	}
	var keys []ed25519.PrivateKey
	if err == nil {
		keys, err = index.ParsePrivateKeys(text)
	}
	if err != nil {
		return nil, fmt.Errorf("read the signing key %s: %w", file, err)
	}
	return keys, nil
}

// makeSigningKey writes a new key to a new file, durably. A file that is there by now stays as it
// is: it may be the only copy of a key.
func makeSigningKey(path string) (text []byte, err error) {
	seed := make([]byte, ed25519.SeedSize)
	rand.Read(seed) // never fails
	if text, err = index.EncodePrivateKeys([]ed25519.PrivateKey{ed25519.NewKeyFromSeed(seed)}); err != nil {
		return nil, err
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".lighter-key-*") // whole before it has its name
	if err != nil {
		return nil, err
	}
	defer os.Remove(file.Name())
	_, err = file.Write(text)
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = os.Link(file.Name(), path) // replaces nothing
	}
	if errors.Is(err, fs.ErrExist) {
		err = fmt.Errorf("%w: it was made meanwhile, or is a link to nothing: try again, or name another file", err)
	}
	if err != nil {
		return nil, err
	}
	return text, durable.SyncDir(filepath.Dir(path))
}

func (a *attach) run(ctx context.Context, ref string) (r attachResult, err error) {
	r.Image, r.Removed = ref, a.remove
	images, err := attachment.Images(ctx, ref, a.platform, a.place.PlainHTTP)
	if errors.Is(err, registry.ErrNoImage) {
		err = command.Usage(err)
	}
	if err != nil {
		return r, fmt.Errorf("attach to %s: %w", ref, err)
	}
	for i, im := range images {
		if err := a.one(ctx, im, &r); err != nil {
			err = fmt.Errorf("attach to %s for %s: %w", ref, im.Platform, err)
			if i == 0 && len(r.Indexes) == 0 {
				return r, err
			}
			r.failed, r.Failed = err, command.OneLine(err)
			break
		}
	}
	return r, nil
}

// one does what the flags say for the image of one platform.
func (a *attach) one(ctx context.Context, im attachment.Image, r *attachResult) error {
	if !a.list && !a.remove {
		done, err := watch(func(show func(wire.Progress)) (attachment.Result, error) {
			a.Report = func(step, blob string, done, total int64) {
				show(wire.Progress{Step: step, Item: blob, Bytes: done, Total: total})
			}
			return attachment.Attach(ctx, im, a.place, a.Options)
		})
		if err != nil {
			return err
		}
		r.Done = append(r.Done, done)
		if a.show != nil {
			a.show(r.Image, done)
		}
		return nil
	}
	var found []attachment.Found
	var refused, err error
	if a.list {
		found, refused, err = attachment.List(ctx, im, a.place)
	} else {
		var keys []ed25519.PublicKey
		for _, key := range a.Keys {
			keys = append(keys, key.Public().(ed25519.PublicKey))
		}
		found, err = attachment.RemoveAll(ctx, im, a.place, keys)
	}
	if refused != nil {
		r.Refused += refused.Error() + "\n"
	}
	for _, f := range found {
		one := attachedIndex{Platform: im.Platform, Manifest: im.Manifest.Digest.String(),
			Artifact: f.Artifact.Digest.String(), Key: index.FormatKey(f.By), Tree: f.Contents.Tree.String(),
			Version: f.Contents.Version, Packs: len(f.Contents.Packs)}
		for _, d := range f.Contents.Blobs() {
			one.Bytes += d.Size
		}
		r.Indexes = append(r.Indexes, one)
	}
	return err
}

// printAttached prints what was done for a platform of an image.
func printAttached(ref string, d attachment.Result) {
	fmt.Printf("%s %s: %s\n", ref, d.Platform, d.State)
	fmt.Printf("  artifact  %s, version %d\n", d.Artifact, d.Version)
	fmt.Printf("  size      %s, and startup packs of %s, for layers of %s\n", size(d.Index), size(d.Startup),
		size(d.Layers))
	fmt.Printf("  signed by %s\n", d.Key)
	for _, lost := range d.Lost {
		fmt.Printf("  the registry had lost: %s\n", lost)
	}
	if d.Left != "" {
		fmt.Printf("  an older version is still there: %s\n", d.Left)
	}
}

// printAttach prints the indexes that were found. What was done is printed already.
func printAttach(r attachResult) error {
	if r.Refused != "" {
		fmt.Fprint(os.Stderr, r.Refused)
	}
	if len(r.Done) > 0 {
		return nil
	}
	if len(r.Indexes) == 0 {
		if r.failed == nil {
			fmt.Printf("%s has no attached index\n", r.Image)
		}
		return nil
	}
	if r.Removed {
		fmt.Println("removed:")
	}
	return table(os.Stdout, "PLATFORM\tARTIFACT\tVERSION\tSIZE\tPACKS\tSIGNED BY", rowsOf(r.Indexes,
		func(i attachedIndex) []any {
			return []any{i.Platform, short(i.Artifact), i.Version, size(i.Bytes), i.Packs, i.Key}
		}))
}
