package plan

const (
	// Recordings and workloads.

	// maxWorkloads bounds the workloads of an image, and maxSamples the recordings kept of each.
	// Further starts are only counted: new samples could change the packs with every start.
	maxWorkloads = 16
	maxSamples   = 3
	// maxRecording bounds the text of one recording, and maxKept that of all recordings of an
	// image, in bytes.
	maxRecording = 4 << 20
	maxKept      = 24 << 20
	// maxExtents bounds the extents looked at for one recording, repeated ones included: a
	// recording may name the same large file many times.
	maxExtents = 1 << 20
	// When an image has more starts than maxStarts, all counts are halved, so that old workloads
	// lose weight.
	maxStarts = 4096
	// A recording belongs to a workload if its similarity to the workload's first sample is at
	// least minSimilarity. The similarity of two recordings is the number of bytes that both read,
	// divided by the number that at least one reads. Bytes are counted by parts of files, of
	// profileBlock bytes each. maxProfile bounds the parts looked at for one recording, repeated
	// ones included.
	minSimilarity = 0.8
	profileBlock  = 64 << 10
	maxProfile    = 1 << 17
	// A workload with less than one in outlierShare of all starts is an outlier.
	outlierShare = 100
	// A workload with a single start can be an outlier only if the other workloads have at least
	// minEvidence starts: see discountOutliers.
	minEvidence = 3
	// firstGuess is the number of starts that the first guess stands for if no real start is known.
	// Each further guess stands for one.
	firstGuess = 64

	// Groups.

	// If a start fetches two groups, merging them saves a trigger, and so a round trip of some
	// milliseconds. This is worth triggerWorth wasted plain bytes. Merging with the group that is
	// fetched at mount is worth mountWorth, since no reader waits for the first chunk.
	triggerWorth = 1 << 20
	mountWorth   = 4 << 20
	// maxWaste is the part of a workload's bytes that may be fetched for it and not used, and
	// minWaste the bytes that any workload may waste.
	maxWaste = 0.05
	minWaste = 64 << 10
	// A workload whose share of all starts is below rare may waste more: its budget is multiplied
	// by (rare/share)². A share below rarest counts as rarest.
	rare, rarest = 0.1, 0.01
	// maxGroups bounds the groups of which all pairs are compared.
	maxGroups = 96
	// maxWorkloadBytes bounds the laid-out part of one workload, in plain bytes.
	maxWorkloadBytes = 1 << 30
	// maxLayout bounds all packs of a tree, in plain bytes.
	maxLayout = 2 << 30

	// Packs.

	// minChunks is the least number of chunks in a pack. In a smaller pack, most chunks would be
	// triggers.
	minChunks = 3
	// A unit ends with the chunk that reaches unitPlain plain bytes. The first unit of a pack, for
	// which a reader may wait, ends at firstUnit. Each further unit may be twice as long as the one
	// before, up to unitPlain.
	unitPlain = 512 << 10
	firstUnit = 96 << 10
	// maxUnitChunks bounds the chunks of a unit, far below the format's limit.
	maxUnitChunks = 8192
	// For each of its workloads, a pack has up to triggersEach triggers in the pack itself: the
	// first chunks that the workload reads there. It has up to triggersEach more triggers in packs
	// that the workload reads earlier.
	triggersEach = 4
)
