// Command olm judges an OLM bundle with the validators that `operator-sdk bundle validate` calls, those
// of OperatorHub and of good practices included. It prints each finding and ends with 1 if there is
// one, be it a warning.
//
// Left out are MultipleArchitectures, which pulls images by Docker, and those of formats that a bundle
// does not have.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/operator-framework/api/pkg/manifests"
	"github.com/operator-framework/api/pkg/validation"
	"github.com/operator-framework/api/pkg/validation/errors"
	validator "github.com/operator-framework/api/pkg/validation/interfaces"
)

var validators = validator.Validators{
	validation.ClusterServiceVersionValidator,
	validation.CustomResourceDefinitionValidator,
	validation.BundleValidator,
	validation.OperatorHubV2Validator,
	validation.StandardCategoriesValidator,
	validation.StandardCapabilitiesValidator,
	validation.ObjectValidator,
	validation.GoodPracticesValidator,
}

// Rights name no version: the validators take each one on CronJobs and PodDisruptionBudgets for one on
// their beta versions, which Kubernetes 1.25 removed. A bundle of ours holds no objects but CRDs.
func isFalseAlarm(finding errors.Error) bool {
	return finding.Level == errors.LevelWarn &&
		strings.Contains(finding.Detail, "deprecated and removed in v1.25") &&
		strings.Contains(finding.Detail, "ClusterPermissions")
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: olm BUNDLE")
		os.Exit(2)
	}
	bundle, err := manifests.GetBundleFromDir(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	findings := 0
	for _, result := range validators.Validate(bundle.ObjectsToValidate()...) {
		for _, finding := range append(result.Errors, result.Warnings...) {
			if !isFalseAlarm(finding) {
				fmt.Println(finding)
				findings++
			}
		}
	}
	fmt.Printf("%s: %d findings\n", bundle.CSV.Name, findings)
	if findings > 0 {
		os.Exit(1)
	}
}
