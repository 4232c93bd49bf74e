// Package manifests renders the manifests and charts of hubs and nodes in Kubernetes, with the libraries
// of kustomize and Helm. Its tests decode what they render strictly, and need no cluster.
package manifests

import (
	"maps"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"
)

// Helm renders the chart in a directory, as a release with a name, with values in YAML.
func Helm(dir, release, values string) (text string, err error) {
	loaded, err := loader.Load(dir)
	if err != nil {
		return "", err
	}
	var given map[string]any
	if err := yaml.Unmarshal([]byte(values), &given); err != nil {
		return "", err
	}
	all, err := util.ToRenderValues(loaded, given,
		common.ReleaseOptions{Name: release, Namespace: "lighter", IsInstall: true}, common.DefaultCapabilities)
	if err != nil {
		return "", err
	}
	files, err := engine.Render(loaded, all)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, ".yaml") {
			text += "\n---\n" + files[name]
		}
	}
	return text, err
}
