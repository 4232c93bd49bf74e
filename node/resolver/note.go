package resolver

// imageLabel is the reference of the image that is pulled, set like layersLabel.
const imageLabel = "containerd.io/snapshot/cri.image-ref"

// note logs a decision. That an image is not lazy is worth a line: its lowest
// layer's.
func (r *Resolver) note(chain, parent string, labels map[string]string, lazy bool, why string) {
	log := r.log.Debug
	if !lazy && parent == "" {
		log = r.log.Info
	}
	log("chain", "chain", chain, "image", labels[imageLabel], "lazy", lazy, "why", why)
}
