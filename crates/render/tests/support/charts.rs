//! Charts that use the usual features.

use super::{Files, files};

const SUB: [(&str, &str); 5] = [
    (
        "Chart.yaml",
        "apiVersion: v2\nname: sub\nversion: 1.2.3\nappVersion: '9'\n",
    ),
    (
        "values.yaml",
        "color: red\nexports:\n  data:\n    shared: from-sub\nglobal: {region: none}\nnested: {a: 1, b: 2}\n",
    ),
    (
        "templates/cm.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ .Release.Name }}-{{ .Chart.Name }}\ndata:\n  color: {{ .Values.color }}\n  region: {{ .Values.global.region }}\n  nested: {{ .Values.nested | toJson | quote }}\n  root: {{ .Chart.IsRoot | quote }}\n  base: {{ .Template.BasePath }}\n  name: {{ .Template.Name }}\n",
    ),
    ("templates/NOTES.txt", "not shown\n"),
    (
        "crds/sub.yaml",
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: subs.example.com}\n",
    ),
];

/// One chart with nearly every feature: sub-charts by folder, with alias, condition, tags and imported values; hooks,
/// tests, definitions, files, ignored files, library functions.
pub fn everything() -> Files {
    let mut all = files([
        (
            "Chart.yaml",
            "apiVersion: v2\nname: web\nversion: 0.1.0\nappVersion: 1.16.0\nkubeVersion: '>=1.20.0-0'\ndependencies:\n- {name: sub, version: 1.x.x, condition: sub.enabled, import-values: [data]}\n- {name: sub, alias: second, version: 1.x.x, tags: [extra]}\n- {name: lib, version: '>0', repository: ''}\n",
        ),
        (
            "values.yaml",
            "replicas: 2\nimage: {repository: nginx, tag: ''}\nlist: [a, b]\nbig: 1234567\nfloat: 0.5\nport: 8080\nyes: 'on'\nremoved: {x: 1}\nannotations: {}\nglobal: {region: eu}\nsub: {enabled: true, color: blue}\ntags: {extra: true}\n",
        ),
        (
            "values-prod.yaml",
            "replicas: 5\nlist: [c]\nremoved: null\nsub: {nested: {b: 3}}\n---\nimage: {tag: v2}\n",
        ),
        (
            "values.schema.json",
            "{\"$schema\": \"http://json-schema.org/draft-07/schema#\", \"type\": \"object\", \"properties\": {\"replicas\": {\"type\": \"integer\", \"minimum\": 1}}}",
        ),
        (".helmignore", "# comment\n*.bak\nsecret/\nfiles/*.tmp\n"),
        ("templates/.hidden.yaml", "{{ fail \"hidden\" }}"),
        ("templates/old.yaml.bak", "{{ fail \"ignored\" }}"),
        ("secret/x.yaml", "x: 1"),
        ("files/a.conf", "alpha = {{ not a template }}\nsecond\n"),
        ("files/b.conf", "beta\n"),
        ("files/c.tmp", "temporary\n"),
        (
            "crds/thing.yaml",
            "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: things.example.com}\n---\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: others.example.com}\n",
        ),
        (
            "templates/_helpers.tpl",
            "{{- define \"web.name\" -}}{{ .Release.Name | trunc 63 | trimSuffix \"-\" }}-{{ .Chart.Name }}{{- end -}}\n{{- define \"web.labels\" -}}\napp.kubernetes.io/name: {{ .Chart.Name }}\napp.kubernetes.io/instance: {{ .Release.Name }}\nhelm.sh/chart: {{ printf \"%s-%s\" .Chart.Name .Chart.Version | replace \"+\" \"_\" }}\n{{- end -}}\n",
        ),
        (
            "templates/deployment.yaml",
            "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: {{ include \"web.name\" . }}\n  labels: {{- include \"web.labels\" . | nindent 4 }}\n  {{- with .Values.annotations }}\n  annotations: {{- toYaml . | nindent 4 }}\n  {{- end }}\nspec:\n  replicas: {{ .Values.replicas }}\n  selector: {matchLabels: {app: web}}\n  template:\n    metadata:\n      labels: {app: web}\n      annotations:\n        checksum/config: {{ include (print $.Template.BasePath \"/configmap.yaml\") . | sha256sum }}\n    spec:\n      containers:\n      - name: web\n        image: \"{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}\"\n        ports:\n        - containerPort: {{ .Values.port }}\n        env:\n        {{- range $i, $e := .Values.list }}\n        - name: ITEM_{{ $i }}\n          value: {{ $e | quote }}\n        {{- end }}\n        - {name: BIG, value: \"{{ .Values.big }}\"}\n        - {name: BIG_INT, value: \"{{ int .Values.big }}\"}\n        - {name: FLOAT, value: \"{{ .Values.float }}\"}\n        - {name: MISSING, value: \"{{ .Values.nothing }}\"}\n",
        ),
        (
            "templates/configmap.yaml",
            "{{- /* files and functions */ -}}\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ include \"web.name\" . }}\ndata:\n{{ (.Files.Glob \"files/*.conf\").AsConfig | indent 2 }}\n  tmp: {{ .Files.Get \"files/c.tmp\" | quote }}\n  ignored: {{ .Files.Get \"secret/x.yaml\" | quote }}\n  lines: {{ .Files.Lines \"files/a.conf\" | join \"|\" | quote }}\n  tpl: {{ tpl \"{{ .Values.image.repository }}/{{ include \\\"web.name\\\" . }}\" . | quote }}\n  dict: {{ dict \"a\" 1 \"b\" (list 1 2 (dict \"c\" true)) | toJson | quote }}\n  yaml: |\n{{ .Values | toYaml | indent 4 }}\n  toml: {{ dict \"a\" \"b\" | toToml | quote }}\n  merged: {{ merge (dict \"x\" 1) (dict \"x\" 2 \"y\" 3) | toJson | quote }}\n  from: {{ (fromYaml \"a: [1, 2]\").a | toJson | quote }}\n  regex: {{ regexReplaceAll \"[aeiou]\" \"kubernetes\" \"_\" | quote }}\n  sorted: {{ list \"b\" \"a\" | sortAlpha | join \",\" }}\n  date: {{ dateInZone \"2006-01-02 15:04\" (toDate \"2006-01-02T15:04:05Z07:00\" \"2026-01-02T03:04:05Z\") \"Europe/Berlin\" | quote }}\n  ternary: {{ ternary \"yes\" \"no\" (gt (int .Values.replicas) 3) | quote }}\n  duration: {{ durationRoundTo \"95s\" \"1m\" | quote }}\n  semver: {{ semverCompare \">=1.10-0\" .Capabilities.KubeVersion.Version | quote }}\n  imported: {{ .Values.shared | default \"none\" | quote }}\n  required: {{ required \"replicas!\" .Values.replicas | quote }}\n  lookup: {{ (lookup \"v1\" \"Secret\" \"default\" \"x\") | toJson | quote }}\n  subcharts: {{ ((.Subcharts.sub).Values).color | default \"none\" | quote }}\n  env: {{ \"$HOME\" | quote }}\n",
        ),
        (
            "templates/capabilities.yaml",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: capabilities}\ndata:\n  version: {{ .Capabilities.KubeVersion.Version | quote }}\n  minor: {{ .Capabilities.KubeVersion.Minor | quote }}\n  gitVersion: {{ .Capabilities.KubeVersion.GitVersion | quote }}\n  apps: {{ .Capabilities.APIVersions.Has \"apps/v1\" | quote }}\n  kind: {{ .Capabilities.APIVersions.Has \"monitoring.coreos.com/v1/ServiceMonitor\" | quote }}\n  monitoring: {{ .Capabilities.APIVersions.Has \"monitoring.coreos.com/v1\" | quote }}\n  helm: {{ .Capabilities.HelmVersion.Version | quote }}\n  install: {{ .Release.IsInstall | quote }}\n  upgrade: {{ .Release.IsUpgrade | quote }}\n  revision: {{ .Release.Revision | quote }}\n  service: {{ .Release.Service | quote }}\n  namespace: {{ .Release.Namespace | quote }}\n  chart: {{ .Chart | toJson | quote }}\n",
        ),
        (
            "templates/many.yaml",
            "# several documents, kinds out of order\n---\n\n---\napiVersion: v1\nkind: Service\nmetadata: {name: z}\nspec: {ports: [{port: 80}]}\n---   \napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: b}\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: ns}\n--- \n# only a comment\n---\napiVersion: example.com/v1\nkind: Unknown\nmetadata: {name: u}\nspec: {octal: 0644, yes: yes, word: on, hex: 0x1F, float: 1e3, tilde: ~, string: '0644', time: 12:30:45, date: 2026-01-02}\n---\napiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: in-a-list}}\n",
        ),
        ("templates/empty.yaml", "{{- if false }}\nkind: Never\n{{- end }}\n"),
        ("templates/NOTES.txt", "Thank you for installing {{ .Chart.Name }}.\n"),
        (
            "templates/hooks.yaml",
            "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: migrate\n  annotations:\n    helm.sh/hook: pre-install,pre-upgrade\n    helm.sh/hook-weight: \"-5\"\n    helm.sh/hook-delete-policy: before-hook-creation\nspec: {template: {spec: {restartPolicy: Never, containers: [{name: m, image: m}]}}}\n---\napiVersion: v1\nkind: Secret\nmetadata:\n  name: hook-secret\n  annotations: {helm.sh/hook: pre-install}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: unknown-hook\n  annotations: {helm.sh/hook: on-tuesdays}\n",
        ),
        (
            "templates/tests/test.yaml",
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: test-connection\n  annotations: {\"helm.sh/hook\": test}\nspec: {containers: [{name: t, image: t}], restartPolicy: Never}\n",
        ),
        (
            "templates/crlf.yaml",
            "apiVersion: v1\r\nkind: ConfigMap\r\nmetadata:\r\n  name: crlf\r\ndata:\r\n  a: |\r\n    one\r\n    two\r\n",
        ),
        (
            "templates/bom.yaml",
            "\u{feff}apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bom}\n",
        ),
        (
            "charts/lib/Chart.yaml",
            "apiVersion: v2\nname: lib\nversion: 2.0.0\ntype: library\n",
        ),
        (
            "charts/lib/templates/_lib.tpl",
            "{{- define \"lib.cm\" -}}\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: from-library}\n{{- end -}}\n",
        ),
        ("charts/lib/templates/never.yaml", "kind: Never\n"),
        ("templates/lib.yaml", "{{ include \"lib.cm\" . }}\n"),
        ("charts/_ignored/x", ""),
    ]);
    for (name, content) in SUB {
        all.insert(format!("charts/sub/{name}"), content.as_bytes().to_vec());
    }
    all
}

/// A small chart with this template, which makes one object.
pub fn small(template: &str) -> Files {
    files([
        ("Chart.yaml", "apiVersion: v2\nname: small\nversion: 1.0.0\n"),
        ("templates/a.yaml", template),
    ])
}

pub fn sub() -> Files {
    files(SUB)
}
