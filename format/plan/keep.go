package plan

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"

	"lighter/format/chunk"
	"lighter/format/trace"
)

// Workload is a set of starts that read nearly the same files.
type Workload struct {
	Starts  int64             // number of starts
	Samples []trace.Recording // recordings of some of them, the oldest first
}

// ID names a workload among those of an image: 12 hexadecimal digits, derived from its oldest
// sample.
func (w Workload) ID() string {
	// The count is left out, because it changes.
	text := trace.EncodeText([]trace.Recording{{Starts: 1, Entries: w.Samples[0].Entries}})
	return chunk.Sum(text).String()[:12]
}

// Without removes the workloads whose IDs begin with id from the recordings kept of an image. It
// returns the other recordings, and the removed workloads.
func Without(kept []trace.Recording, id string) (left []trace.Recording, removed []Workload) {
	for _, w := range sorted(kept) {
		if strings.HasPrefix(w.ID(), id) {
			removed = append(removed, w.Workload)
		} else {
			left = append(left, w.Samples...)
		}
	}
	return left, removed
}

// Kept has the recordings kept of an image, sorted into workloads. Sorting takes seconds for an
// image of many gigabytes, so callers sort once and add several recordings.
type Kept struct{ all []workload }

// Sort sorts the recordings kept of an image into workloads. kept must be in the order of
// Kept.Recordings.
func Sort(kept []trace.Recording) *Kept { return &Kept{sorted(kept)} }

// Add adds recordings, the oldest first, and removes the least used workloads beyond the bounds.
func (k *Kept) Add(more []trace.Recording) {
	for _, r := range more {
		if r = bounded(r); len(r.Entries) > 0 {
			k.all = evict(insert(k.all, r))
		}
	}
}

// IsNew reports whether a recording belongs to none of the workloads: adding it would begin one.
func (k *Kept) IsNew(r trace.Recording) bool {
	_, at := nearest(k.all, bounded(r))
	return at < 0
}

// Recordings returns the recordings to keep.
func (k *Kept) Recordings() (out []trace.Recording) {
	for _, w := range k.all {
		out = append(out, w.Samples...)
	}
	return out
}

// Workloads sorts the recordings kept of an image into workloads, the most used first.
func Workloads(kept []trace.Recording) []Workload {
	all := sorted(kept)
	out := make([]Workload, 0, len(all))
	for _, w := range all {
		out = append(out, w.Workload)
	}
	slices.SortStableFunc(out, func(a, b Workload) int { return cmp.Compare(b.Starts, a.Starts) })
	return out[:min(len(out), maxWorkloads)]
}

// workload is a workload with the profile of its first sample. Other recordings are compared with
// this profile.
type workload struct {
	Workload
	profile profile
}

// sorted sorts the recordings kept of an image into workloads.
func sorted(kept []trace.Recording) (all []workload) {
	for _, r := range kept {
		all = insert(all, r)
	}
	return all
}

// insert adds a recording to the workload that it is most similar to, or begins one with it.
func insert(all []workload, r trace.Recording) []workload {
	p, at := nearest(all, r)
	r.Starts = max(r.Starts, 1)
	if at < 0 {
		return append(all, workload{Workload{r.Starts, []trace.Recording{r}}, p})
	}
	w := &all[at]
	w.Starts += r.Starts
	if len(w.Samples) < maxSamples {
		w.Samples = append(w.Samples, r)
	} else {
		w.Samples[0].Starts += r.Starts
	}
	return all
}

// nearest returns the profile of a recording, and the index of the most similar workload, or -1.
func nearest(all []workload, r trace.Recording) (p profile, at int) {
	p, at = profileOf(r), -1
	best := minSimilarity
	for i := range all {
		if s := all[i].profile.similar(p); s >= best {
			best, at = s, i
		}
	}
	return p, at
}

// evict removes the least used workloads beyond the bounds, and halves all counts if there are too
// many starts. It keeps the newest workload, which could otherwise never gather starts.
func evict(all []workload) []workload {
	for len(all) > maxWorkloads || len(all) > 1 && size(all) > maxKept {
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

// halve halves the starts of each sample. Each keeps at least one.
func (w *workload) halve() {
	w.Starts = 0
	for i := range w.Samples {
		w.Samples[i].Starts = max(w.Samples[i].Starts/2, 1)
		w.Starts += w.Samples[i].Starts
	}
}

func size(all []workload) (n int) {
	for _, w := range all {
		for _, s := range w.Samples {
			for i := range s.Entries {
				n += s.Entries[i].Size()
			}
		}
	}
	return n
}

// bounded truncates a recording that is too long, and caps its number of starts.
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

// profile is the number of bytes that a start has read of each part of each file. Two starts that
// have read the same number of bytes of a part count as having read the same bytes.
type profile struct {
	parts map[uint64]int64 // bytes read, by the hash of file and part
	all   int64            // bytes of all parts
}

var seed = maphash.MakeSeed()

func profileOf(r trace.Recording) profile {
	p := profile{parts: map[uint64]int64{}}
	looks := 0
	for i := range r.Entries {
		e := &r.Entries[i]
		file := maphash.String(seed, e.Path)
		for at := e.Offset; at < e.Offset+e.Length && looks < maxProfile; looks++ {
			end := min((at/profileBlock+1)*profileBlock, e.Offset+e.Length)
			key := file + uint64(at/profileBlock) // hashes of files are far apart, so sums hardly collide
			had := p.parts[key]
			has := min(had+end-at, profileBlock)
			p.parts[key] = has
			p.all += has - had
			at = end
		}
	}
	return p
}

// similar returns the bytes that both have read, divided by the bytes that at least one has read,
// or 0 if that is below minSimilarity. It stops counting as soon as the result must be below
// minSimilarity.
func (p profile) similar(q profile) float64 {
	if len(p.parts) > len(q.parts) {
		p, q = q, p
	}
	most := p.all // upper bound of the bytes that both have read
	for key, n := range p.parts {
		most -= n - min(n, q.parts[key])
		if float64(most) < minSimilarity*float64(p.all+q.all-most) {
			return 0
		}
	}
	if most == 0 {
		return 0
	}
	return float64(most) / float64(p.all+q.all-most)
}
