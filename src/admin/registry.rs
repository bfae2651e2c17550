//! `GET /registry`: what the embedded registry of this process holds, as a page without scripts.

use std::fmt::Write as _;

use super::answer::{Answer, Fault, html};
use super::call::Call;
use super::routes::Route;
use super::{PATIENCE, within};
use crate::registry::overview::{Line, Overview, ServiceLines};

pub(super) const ROUTES: &[Route] = &[Route::get(
    "/registry",
    "services of the embedded registry, for people",
    |call| Box::pin(page(call)),
)
.answers("text/html")];

async fn page(call: Call) -> Result<Answer, Fault> {
    let registries = within(PATIENCE, call.deps.control.embedded()).await?;
    let mut body = String::new();
    for (name, overview) in &registries {
        section(&mut body, name, overview);
    }
    if registries.is_empty() {
        body.push_str(
            "<p>No embedded registry runs in this process. Where instances come from: \
             <a href=\"/api/v1/registries\">registries</a>, \
             <a href=\"/api/v1/services\">services</a>.\n",
        );
    }
    Ok(html(PAGE.replace("{body}", &body)))
}

const PAGE: &str = include_str!("registry.html");

fn section(out: &mut String, name: &str, overview: &Overview) {
    let Overview {
        services,
        instances,
        unlisted,
        clients,
    } = overview;
    // Writing to a string cannot fail.
    let _infallible = write!(
        out,
        "<h2>{}</h2>\n<p>{} services, {instances} instances, {clients} gRPC clients\n",
        escaped(name),
        services.len(),
    );
    if services.is_empty() {
        out.push_str(
            "<p>Nothing is registered. A Nacos client registers at this registry's address, by hand: \
             <code>curl -X POST 'http://127.0.0.1:15005/nacos/v1/ns/instance?serviceName=orders&amp;\
             ip=127.0.0.1&amp;port=8080'</code>; it goes after 30 s without a beat.\n",
        );
        return;
    }
    out.push_str("<table>\n<tr><th>service<th>instance<th>state<th>weight<th>cluster<th>lives by<th>metadata\n");
    for service in services {
        rows(out, service);
    }
    out.push_str("</table>\n");
    if *unlisted > 0 {
        let _infallible = writeln!(out, "<p>{unlisted} more instances are not listed.");
    }
}

fn rows(out: &mut String, service: &ServiceLines) {
    let key = &service.key;
    let title = format!(
        "<b>{}</b><br>{} / {}",
        escaped(&key.name),
        escaped(&key.namespace),
        escaped(&key.group),
    );
    let height = service.instances.len().max(1);
    let _infallible = write!(out, "<tr><td rowspan={height}>{title}");
    if service.instances.is_empty() {
        out.push_str("<td colspan=6>no instances\n");
    }
    for (index, line) in service.instances.iter().enumerate() {
        if index > 0 {
            out.push_str("<tr>");
        }
        row(out, line);
    }
}

fn row(out: &mut String, line: &Line) {
    let metadata: Vec<String> = line
        .metadata
        .iter()
        .map(|(name, value)| format!("{}={}", escaped(name), escaped(value)))
        .collect();
    let _infallible = writeln!(
        out,
        "<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}",
        escaped(&line.address),
        line.state,
        f64::from(line.weight.thousandths()) / 1000.0,
        escaped(&line.cluster),
        line.lives_by,
        metadata.join("<br>"),
    );
}

/// Whatever clients registered is text, never markup.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Weight;
    use crate::registry::ServiceKey;

    #[test]
    fn what_clients_register_is_text() {
        let line = Line {
            address: "10.0.0.1:80".to_owned(),
            cluster: "DEFAULT".into(),
            weight: Weight::ONE,
            state: "healthy",
            lives_by: "beats",
            metadata: std::sync::Arc::new([("<b>".to_owned(), "\"'&\u{1b}".to_owned())].into()),
        };
        let overview = Overview {
            services: vec![ServiceLines {
                key: ServiceKey::new(None, None, "<script>").unwrap(),
                instances: vec![line.clone(), line],
            }],
            instances: 2,
            unlisted: 3,
            clients: 1,
        };
        let mut page = String::new();
        section(&mut page, "r", &overview);
        assert!(
            page.contains("&lt;script&gt;") && !page.contains("<script>"),
            "{page}"
        );
        assert!(page.contains("&lt;b&gt;=&quot;&#39;&amp; \n"), "{page}");
        assert!(
            page.contains("rowspan=2") && page.contains("3 more instances"),
            "{page}"
        );
        assert_eq!(page.matches("10.0.0.1:80").count(), 2);
    }
}
