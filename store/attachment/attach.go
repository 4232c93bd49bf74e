package attachment

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"lighter/format/attached"
	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/store"
	"lighter/store/registry"
	"lighter/store/repository"
)

// Place is where indexes of images are pushed to.
type Place struct {
	// Chains is the repository that serves as a hub without a process, HOST/REPO: the artifacts
	// have a tag for their chain there. Empty: an artifact is in the repository of its image.
	Chains    string
	PlainHTTP bool // allows plain HTTP to a registry that is not on this machine
}

// Result says what was done for an image. Sizes are in bytes.
type Result struct {
	Platform string `json:"platform"`
	Manifest string `json:"manifest"` // of the image
	Artifact string `json:"artifact"` // the digest of the attached artifact
	State    string `json:"state"`    // attached; replaced: another version of it was there; unchanged
	Tree     string `json:"tree"`
	Version  int    `json:"version"`
	Key      string `json:"key"`     // the public key, as nodes have it in their configuration
	Layers   int64  `json:"layers"`  // of the image
	Index    int64  `json:"index"`   // of the artifact without startup packs
	Startup  int64  `json:"startup"` // of the startup packs
	// Lost says what the registry had lost of what was attached before.
	Lost []string `json:"lost,omitempty"`
	// Left says why an older version is still there; empty: it is not.
	Left string `json:"left,omitempty"`
}

// Attach sees to it that an image has an index that all of the keys have signed. If it has one of
// some of them, only the startup packs are made again, and only if there are recordings. If there
// are none, and a signature is missing, it is signed again as it is. What the registry has lost of
// it is made again, too.
func Attach(ctx context.Context, im Image, in Place, o Options) (Result, error) {
	var reporting sync.Mutex
	if report := o.Report; report != nil {
		o.Report = func(step, blob string, done, total int64) {
			reporting.Lock()
			defer reporting.Unlock()
			report(step, blob, done, total)
		}
	}
	key := o.Keys[0].Public().(ed25519.PublicKey)
	r := Result{Platform: im.Platform, Manifest: im.Manifest.Digest.String(), Key: index.FormatKey(key)}
	for _, d := range im.Layers {
		r.Layers += d.Size
	}
	others, refused, err := in.find(ctx, &im, Trust{Anybody: true})
	if err != nil {
		return r, err
	}
	for _, one := range eachOf(refused) {
		if errors.Is(one, chunk.ErrNotFound) { // of a list that was copied without what it names
			r.Lost = append(r.Lost, one.Error())
		}
	}
	var old []Found   // of these keys
	isSigned := false // old[0], by all of them
	for _, f := range others {
		o.Version = attached.After(o.Version, f.Contents) // nodes take the highest one of all keys
		if some, all := attached.HaveSigned(f.Signers, o.Keys); some {
			isSigned = isSigned || all && len(old) == 0
			old = append(old, f)
		}
	}
	isWhole := false // old[0]
	if len(old) > 0 {
		lost, err := lostOf(ctx, old[0])
		if err != nil {
			return r, err
		}
		for _, one := range eachOf(lost) {
			r.Lost = append(r.Lost, one.Error())
		}
		isWhole = lost == nil
	}
	isCurrent := isWhole && len(o.Recordings) == 0 && old[0].Contents.Format == index.Format
	if isCurrent && isSigned {
		r.fill(&Made{Contents: *old[0].Contents}, "unchanged", old[0].Artifact.Digest.String())
		return r, nil
	}
	to, err := in.target(ctx, &im)
	if err == nil {
		err = to.May(ctx) // before the layers are read
	}
	if err != nil {
		return r, err
	}
	var made *Made
	if isCurrent {
		made, err = signAgain(*old[0].Contents, o)
	} else {
		made, err = in.make(ctx, im, old, o)
	}
	if err != nil {
		return r, err
	}
	defer made.Close()
	if isSigned && isWhole && made.Contents.Equal(old[0].Contents) {
		r.fill(made, "unchanged", old[0].Artifact.Digest.String())
		return r, nil
	}
	if in.Chains != "" {
		artifact, err := made.Name(ctx, to)
		r.fill(made, state(old), artifact.String())
		return r, err
	}
	artifact, err := made.Attach(ctx, to, im.Manifest)
	if err != nil {
		return r, err
	}
	r.fill(made, state(old), artifact.String())
	if _, err := Remove(ctx, to, im.Manifest, old); err != nil {
		r.Left = err.Error()
	}
	return r, nil
}

func state(old []Found) string {
	if len(old) > 0 {
		return "replaced"
	}
	return "attached"
}

func (r *Result) fill(made *Made, state, artifact string) {
	r.State, r.Artifact, r.Tree, r.Version = state, artifact, made.Contents.Tree.String(), made.Contents.Version
	r.Index = made.Size()
	for _, p := range made.Contents.Packs {
		r.Startup += p.Blob.Size
	}
}

// make makes an index, or only other startup packs for the newest of those that are there.
func (p Place) make(ctx context.Context, im Image, old []Found, o Options) (*Made, error) {
	o.Version = max(o.Version, 1)
	if len(old) > 0 && old[0].Contents.Format == index.Format {
		made, err := Remake(ctx, im, old[0], o)
		if !errors.Is(err, chunk.ErrNotFound) { // the registry has lost a part of it
			return made, err
		}
	}
	return Make(ctx, im, o)
}

// find returns the indexes of an image that are in the place. refused says why others that are
// listed there were left out.
func (p Place) find(ctx context.Context, im *Image, trust Trust) (all []Found, refused, err error) {
	if p.Chains == "" {
		return Find(ctx, im.From, im.Manifest.Digest, im.Chain(), nil, trust)
	}
	chains, err := registry.Repository(ctx, p.Chains, p.PlainHTTP)
	if err != nil {
		return nil, nil, err
	}
	in := []*repository.Repository{chains}
	all, refused, err = Among(ctx, im.From, nil, im.Manifest.Digest, im.Chain(), in, trust)
	if errors.Is(refused, chunk.ErrNotFound) { // there is no such tag
		refused = nil
	}
	return all, refused, err
}

// lostOf returns an error that says which blobs of an index its registry does not have any more, or
// nil. err says that the registry could not be asked.
func lostOf(ctx context.Context, f Found) (lost, err error) {
	blobs := f.Contents.Blobs()
	missing := make([]error, len(blobs))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(looksAtOnce)
	for i, d := range blobs {
		group.Go(func() error {
			err := f.In.Range(ctx, d, 0, 1, func(store.Answer) error { return nil })
			switch {
			case errors.Is(err, chunk.ErrNotFound):
				missing[i] = fmt.Errorf("artifact %s: %w", f.Artifact.Digest, err)
			case err != nil && !errors.Is(err, repository.ErrNoRanges):
				return err
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return errors.Join(missing...), nil
}

// eachOf returns the errors that errors.Join has joined.
func eachOf(err error) (all []error) {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	for _, one := range joined.Unwrap() {
		all = append(all, eachOf(one)...)
	}
	return all
}

// target returns the place, for pushing the index of an image.
func (p Place) target(ctx context.Context, im *Image) (*registry.Destination, error) {
	ref := im.From.String()
	if p.Chains != "" {
		ref = p.Chains + ":" + attached.ChainTag(im.Chain())
	}
	return registry.FindDestination(ctx, ref, p.PlainHTTP)
}

// List returns the indexes of an image that are in the place, whoever has signed them. refused says
// what else is listed, and what the registry has lost of the indexes.
func List(ctx context.Context, im Image, in Place) (all []Found, refused, err error) {
	all, refused, err = in.find(ctx, &im, Trust{Anybody: true})
	for _, f := range all {
		lost, err := lostOf(ctx, f)
		if err != nil {
			return nil, nil, err
		}
		refused = errors.Join(refused, lost)
	}
	return all, refused, err
}

// RemoveAll removes the indexes of an image that are in the place: those that one of the keys has
// signed; without keys, all. It returns those that it has removed, also with an error. The error
// wraps push.ErrNoDeletion if the registry does not delete manifests.
func RemoveAll(ctx context.Context, im Image, in Place, keys []ed25519.PublicKey) (removed []Found, err error) {
	for {
		// The newest ones. Some registries delete later, and list them until then.
		all, _, err := in.find(ctx, &im, Trust{Keys: keys, Anybody: len(keys) == 0})
		all = slices.DeleteFunc(all, func(f Found) bool {
			return slices.ContainsFunc(removed, func(r Found) bool { return r.Artifact.Digest == f.Artifact.Digest })
		})
		if err != nil || len(all) == 0 {
			return removed, err
		}
		some, err := in.remove(ctx, &im, all)
		removed = append(removed, some...)
		if err != nil {
			return removed, fmt.Errorf("remove the index of image %s: %w", im.Manifest.Digest, err)
		}
	}
}

// remove removes indexes of an image that are in the place.
func (p Place) remove(ctx context.Context, im *Image, all []Found) ([]Found, error) {
	to, err := p.target(ctx, im)
	if err != nil {
		return nil, err
	}
	if p.Chains == "" {
		return Remove(ctx, to, im.Manifest, all)
	}
	if err := to.DeleteName(ctx, all[0].Artifact); err != nil {
		return nil, err
	}
	return all, nil // a tag has one
}
