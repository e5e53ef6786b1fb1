// Evaluates CEL expressions as kube-apiserver evaluates those of a ValidatingAdmissionPolicy: with its environment and
// its libraries, on objects without types.  Reads a list of questions from standard input, prints a list of answers.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/google/cel-go/cel"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"
)

type question struct {
	Expressions []string       `json:"expressions"`
	Variables   map[string]any `json:"variables"`
}

func answer(env *cel.Env, expression string, variables map[string]any) string {
	ast, issues := env.Compile(expression)
	if issues.Err() != nil {
		return "does not compile: " + issues.Err().Error()
	}
	program, err := env.Program(ast)
	if err != nil {
		return "is no program: " + err.Error()
	}
	value, _, err := program.Eval(variables)
	if err != nil {
		return "fails: " + err.Error()
	}
	return fmt.Sprint(value.Value())
}

func main() {
	set, err := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0),
		EnvOptions: []cel.EnvOption{
			cel.Variable("object", cel.DynType),
			cel.Variable("oldObject", cel.DynType),
			cel.Variable("request", cel.DynType),
		},
	})
	if err != nil {
		panic(err)
	}
	env, err := set.Env(environment.NewExpressions)
	if err != nil {
		panic(err)
	}
	var questions []question
	if err := json.NewDecoder(os.Stdin).Decode(&questions); err != nil {
		panic(err)
	}
	answers := make([][]string, 0, len(questions))
	for _, asked := range questions {
		row := make([]string, 0, len(asked.Expressions))
		for _, expression := range asked.Expressions {
			row = append(row, answer(env, expression, asked.Variables))
		}
		answers = append(answers, row)
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		panic(err)
	}
}
