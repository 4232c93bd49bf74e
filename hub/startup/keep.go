package startup

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"

	"lighter/format/chunk"
	"lighter/format/trace"
)

const (
	// maxWorkloads bounds the workloads of an image, samples the recordings that
	// are kept of each: those that follow are counted only, so that an image that
	// starts often keeps its packs.
	maxWorkloads = 16
	samples      = 3

	// maxRecording bounds a recording, as text, and maxKept all of an image's, in
	// bytes.
	maxRecording = 4 << 20
	maxKept      = 24 << 20

	// maxStarts is how many starts are counted before all counts are halved: what
	// was used long ago gives way.
	maxStarts = 4096

	// alike is how similar two starts of one workload are.
	alike = 0.8
)

// Workload is starts that read nearly the same.
type Workload struct {
	Starts  int64             // how many
	Samples []trace.Recording // of some of them, the oldest first
}

// ID names a workload among those of an image, as long as its oldest sample is
// kept: 12 hexadecimal digits.
func (w Workload) ID() string {
	text := trace.EncodeText([]trace.Recording{{Starts: 1, Entries: w.Samples[0].Entries}}) // the starts that it stands for change
	return chunk.Sum(text).String()[:12]
}

// Without returns the recordings that are left of those that are kept of an image
// when the workloads go whose IDs begin with id, and these.
func Without(kept []trace.Recording, id string) (left []trace.Recording, gone []Workload) {
	for _, w := range placed(kept) {
		if strings.HasPrefix(w.ID(), id) {
			gone = append(gone, w.Workload)
		} else {
			left = append(left, w.Samples...)
		}
	}
	return left, gone
}

// Kept are the recordings that are kept of an image. To sort them takes long, for images
// of many gigabytes seconds: it is done once for all that are added.
type Kept struct{ all []workload }

// Sort sorts the recordings that are kept of an image, in the order of Recordings.
func Sort(kept []trace.Recording) *Kept { return &Kept{placed(kept)} }

// Add keeps more recordings, the oldest first, within the bounds.
func (k *Kept) Add(more []trace.Recording) {
	for _, r := range more {
		if r = bounded(r); len(r.Entries) > 0 {
			k.all = dropped(place(k.all, r))
		}
	}
}

// Begins tells whether a recording is like none of those that are kept: it would
// begin a workload.
func (k *Kept) Begins(r trace.Recording) bool {
	_, at := nearest(k.all, bounded(r))
	return at < 0
}

// Recordings returns the recordings that are to be kept.
func (k *Kept) Recordings() (out []trace.Recording) {
	for _, w := range k.all {
		out = append(out, w.Samples...)
	}
	return out
}

// Workloads sorts the recordings that are kept of an image into workloads, the
// most used first.
func Workloads(kept []trace.Recording) []Workload {
	all := placed(kept)
	out := make([]Workload, 0, len(all))
	for _, w := range all {
		out = append(out, w.Workload)
	}
	slices.SortStableFunc(out, func(a, b Workload) int { return cmp.Compare(b.Starts, a.Starts) })
	return out[:min(len(out), maxWorkloads)]
}

// workload is a workload with the profile of its first sample, by which it is
// known.
type workload struct {
	Workload
	profile profile
}

// placed sorts the recordings that are kept of an image into workloads.
func placed(kept []trace.Recording) (all []workload) {
	for _, r := range kept {
		all = place(all, r)
	}
	return all
}

// place takes a recording into the workload that it is most similar to, or begins
// one with it.
func place(all []workload, r trace.Recording) []workload {
	p, at := nearest(all, r)
	r.Starts = max(r.Starts, 1)
	if at < 0 {
		return append(all, workload{Workload{r.Starts, []trace.Recording{r}}, p})
	}
	w := &all[at]
	w.Starts += r.Starts
	if len(w.Samples) < samples {
		w.Samples = append(w.Samples, r)
	} else {
		w.Samples[0].Starts += r.Starts
	}
	return all
}

// nearest returns the profile of a recording, and which workload it is most similar to;
// -1: to none.
func nearest(all []workload, r trace.Recording) (p profile, at int) {
	p, at = profileOf(r), -1
	best := alike
	for i := range all {
		if s := all[i].profile.similar(p); s >= best {
			best, at = s, i
		}
	}
	return p, at
}

// dropped brings workloads back within the bounds. The newest stays: it would
// otherwise never be used enough.
func dropped(all []workload) []workload {
	for len(all) > maxWorkloads || len(all) > 1 && kept(all) > maxKept {
		least := 0
		for i := range all[:len(all)-1] {
			if all[i].Starts < all[least].Starts {
				least = i
			}
		}
		all = slices.Delete(all, least, least+1)
	}
	total := int64(0)
	for _, w := range all {
		total += w.Starts
	}
	for i := range all {
		if total > maxStarts {
			all[i].halve()
		}
	}
	return all
}

// halve counts half of the starts, and each sample once at least.
func (w *workload) halve() {
	w.Starts = 0
	for i := range w.Samples {
		w.Samples[i].Starts = max(w.Samples[i].Starts/2, 1)
		w.Starts += w.Samples[i].Starts
	}
}

func kept(all []workload) (size int) {
	for _, w := range all {
		for _, s := range w.Samples {
			for i := range s.Entries {
				size += s.Entries[i].Size()
			}
		}
	}
	return size
}

// bounded cuts a recording that is too long, or stands for too many starts.
func bounded(r trace.Recording) trace.Recording {
	r.Starts = min(r.Starts, maxStarts)
	left := maxRecording
	for i := range r.Entries {
		if left -= r.Entries[i].Size(); left < 0 || i == trace.MaxEntries {
			r.Entries = r.Entries[:i]
			break
		}
	}
	return r
}

// profile says how much of which parts of files a start has read.
type profile struct {
	parts map[uint64]int64 // bytes
	all   int64            // of all of them
}

const (
	profileBlock = 64 << 10 // length of such a part, in bytes
	maxProfile   = 1 << 17  // how many of them are looked at, also if it is the same ones again
)

var seed = maphash.MakeSeed()

func profileOf(r trace.Recording) profile {
	p := profile{parts: map[uint64]int64{}}
	looks := 0
	for i := range r.Entries {
		e := &r.Entries[i]
		file := maphash.String(seed, e.Path)
		for at := e.Offset; at < e.Offset+e.Length && looks < maxProfile; looks++ {
			end := min((at/profileBlock+1)*profileBlock, e.Offset+e.Length)
			key := file + uint64(at/profileBlock) // of files, whose hashes are far from each other
			had := p.parts[key]
			has := min(had+end-at, profileBlock)
			p.parts[key] = has
			p.all += has - had
			at = end
		}
	}
	return p
}

// similar is what both have read, as a part of what either has: alike to 1, or 0 if it
// is less than alike, which is seen soon.
func (p profile) similar(q profile) float64 {
	if len(p.parts) > len(q.parts) {
		p, q = q, p
	}
	most := p.all // that both can have read
	for key, n := range p.parts {
		most -= n - min(n, q.parts[key])
		if float64(most) < alike*float64(p.all+q.all-most) {
			return 0
		}
	}
	if most == 0 {
		return 0
	}
	return float64(most) / float64(p.all+q.all-most)
}
